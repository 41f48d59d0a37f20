# Makes the bucket, and lets the three roles do what they need: as deploy/README.md does it on AWS, but by a policy of the
# bucket, since this store has no roles. It may run again at any time.
set -eu
export AWS_PROFILE=owner AWS_DEFAULT_REGION=us-east-1
s3() { aws --endpoint-url "$ENDPOINT" s3api "$@"; }
s3 head-bucket --bucket stash > /dev/null 2>&1 || s3 create-bucket --bucket stash
s3 put-bucket-policy --bucket stash --policy file://bucket-policy.json
s3 put-bucket-lifecycle-configuration --bucket stash --lifecycle-configuration file://lifecycle.json
echo "bucket stash is ready"
