# Runs one monitor, one OSD and the object gateway; the first start makes them. Its users and their keys are the profiles of
# the file KEYS, which is written as all AWS tools read it. A key that is new there is added at the next start; an old one
# stays good until `radosgw-admin key rm` takes it away.
set -eu
data=${DATA:-/var/lib/s3}
keys=${KEYS:-/run/secrets/aws}
port=${PORT:-8000}
mon=${MON_PORT:-3300}
bytes=${STORE_BYTES:-21474836480}
run=$(mktemp -d)
export CEPH_CONF="$data/ceph.conf"

# The configuration follows the variables at every start; only the cluster's identity stays.
[ -s "$data/fsid" ] || cat /proc/sys/kernel/random/uuid > "$data/fsid"
fsid=$(cat "$data/fsid")
cat > "$CEPH_CONF" <<C
[global]
fsid = $fsid
mon_host = [v2:127.0.0.1:$mon/0]
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_msgr1 = false
keyring = $data/keyring
run_dir = $run
admin_socket =
log_to_file = false
log_to_stderr = false
mon_cluster_log_to_file = false
setuser =
setgroup =
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 2000
[mon.a]
mon_data = $data/mon
[osd.0]
osd_data = $data/osd
osd_objectstore = bluestore
bluestore_block_size = $bytes
osd_memory_target = 939524096
[client.rgw.a]
rgw_frontends = beast port=$port
rgw_enable_apis = s3, admin
C

if [ ! -e "$data/made" ]; then
    rm -rf "$data/mon" "$data/osd" "$data/keyring"
    mkdir "$data/mon" "$data/osd"
    key() {
        name=$1
        shift
        ceph-authtool -C "$run/key" --gen-key -n "$name" "$@" > /dev/null
        (umask 077 && cat "$run/key" >> "$data/keyring")
    }
    key mon. --cap mon 'allow *'
    key client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
    key osd.0 --cap mon 'allow profile osd' --cap osd 'allow *' --cap mgr 'allow profile osd'
    key client.rgw.a --cap mon 'allow rwx' --cap osd 'allow rwx'
    monmaptool --create --clobber --fsid "$fsid" --addv a "[v2:127.0.0.1:$mon/0]" "$run/monmap" > /dev/null
    ceph-mon --mkfs -i a --keyring "$data/keyring" --monmap "$run/monmap"
fi
ceph-mon -i a -f &
if [ ! -e "$data/made" ]; then
    cat /proc/sys/kernel/random/uuid > "$data/osd.uuid"
    ceph --connect-timeout 60 osd new "$(cat "$data/osd.uuid")" > /dev/null
    ceph-osd -i 0 --mkfs --osd-uuid "$(cat "$data/osd.uuid")"
    : > "$data/made"
fi
ceph-osd -i 0 -f &
# A line a profile: name, access key, secret key.
awk -F '[] []+|[ =]+' '
    /^\[/ { name = $2 }
    /^aws_access_key_id/ { access[name] = $2 }
    /^aws_secret_access_key/ { print name, access[name], $2 }
' "$keys" > "$run/users"
while read -r name access secret; do
    radosgw-admin -n client.rgw.a user info --uid="$name" > /dev/null 2>&1 ||
        radosgw-admin -n client.rgw.a user create --uid="$name" --display-name="$name" > /dev/null
    radosgw-admin -n client.rgw.a key create --uid="$name" --key-type=s3 --access-key="$access" --secret-key="$secret" > /dev/null
done < "$run/users"
rm "$run/users"
exec radosgw -n client.rgw.a -f
