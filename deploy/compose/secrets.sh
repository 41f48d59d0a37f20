# Draws the passwords and keys of this installation into the folder `secrets`, once. Nothing else knows them: keep the folder
# out of version control, and out of images.
set -eu
cd "$(dirname "$0")"
[ ! -e secrets ] || { echo "secrets/ is there already; remove it, and the volumes with it, to draw anew" >&2; exit 1; }
draw() { od -An -N20 -tx1 /dev/urandom | tr -d ' \n'; }
umask 077
mkdir secrets
# The containers' users are not this one: the folder keeps others out, the files in it can be read by whom they are mounted for.
umask 022
password=$(draw)
printf '%s' "$password" > secrets/postgres
printf 'PGPASSWORD=%s\n' "$password" > secrets/stash.env
for name in owner writer consumer sweeper; do
    printf '[%s]\naws_access_key_id = %s\naws_secret_access_key = %s\n\n' "$name" "$name-$(draw | cut -c 1-12)" "$(draw)"
done > secrets/aws
echo "drew secrets/postgres, secrets/stash.env and secrets/aws"
