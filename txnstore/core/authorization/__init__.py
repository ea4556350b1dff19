"""Authorization: principals, rules (ACLs), and the rights that each command needs."""
