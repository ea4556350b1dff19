"""S3: requests through s3fs or obstore, with errors mapped and creates conditional."""
