"""S3 servers on 127.0.0.1, and a proxy between a program and one of them that counts requests and injects faults."""
