# A Ceph of one monitor and one OSD in memory, with an object gateway, for tests. Run by servers/supervised.rs, which says
# what DIR and PORTS are and what must be printed. Stops at the end of stdin, and takes DIR along.
set -eu
daemons=
finish() {
    status=$?
    trap - EXIT
    # What is in memory dies with its process: there is nothing to flush.
    for daemon in $daemons; do kill -9 "$daemon" 2>/dev/null || true; done
    wait
    [ "$status" = 0 ] || tail -n 15 "$DIR"/log/* || true
    cd /
    rm -rf "$DIR"
}
trap finish EXIT
# Also when nobody reads what is printed any more, since the test process ended early.
trap 'exit 1' PIPE HUP INT TERM

http=${PORTS%% *}
mon=${PORTS##* }
mkdir "$DIR/mon" "$DIR/osd" "$DIR/run"
export CEPH_CONF="$DIR/ceph.conf"
cat > "$CEPH_CONF" <<C
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon_host = [v2:127.0.0.1:$mon/0]
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_msgr1 = false
keyring = $DIR/keyring
run_dir = $DIR/run
admin_socket =
log_file = $DIR/log/\$name
mon_cluster_log_file = $DIR/log/cluster
setuser =
setgroup =
# One copy, few placement groups, and no waiting for company: this cluster is as small as it ever gets.
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pgp_num = 4
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 2000
paxos_propose_interval = 0.02
# A monitor with less than a twentieth of its disk free does not start, and stops when it gets there. This one needs a
# few megabytes of whatever disk there is.
mon_data_avail_warn = 0
mon_data_avail_crit = 0
[mon.a]
mon_data = $DIR/mon
[osd.0]
osd_data = $DIR/osd
osd_objectstore = memstore
memstore_device_bytes = 4294967296
[client.rgw.a]
rgw_frontends = beast endpoint=127.0.0.1:$http tcp_nodelay=1
rgw_dns_name = localhost
rgw_enable_apis = s3, admin
# Keys of customers, over the loopback.
rgw_crypt_require_ssl = false
C

gone() { case $(cut -d ' ' -f 3 "/proc/$1/stat" 2>/dev/null || true) in '' | Z) true ;; *) false ;; esac }

key() { name=$1; shift; ceph-authtool -C "$DIR/key" --gen-key -n "$name" "$@"; cat "$DIR/key" >> "$DIR/keyring"; }
{
    key mon. --cap mon 'allow *'
    key client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
    key osd.0 --cap mon 'allow profile osd' --cap osd 'allow *' --cap mgr 'allow profile osd'
    key client.rgw.a --cap mon 'allow rwx' --cap osd 'allow rwx'
    monmaptool --create --clobber --fsid "$(sed -n 's/^fsid = //p' "$CEPH_CONF")" --addv a "[v2:127.0.0.1:$mon/0]" "$DIR/monmap"
    # The monitor takes all keys over from the keyring, so that nobody has to be introduced later.
    ceph-mon --mkfs -i a --keyring "$DIR/keyring" --monmap "$DIR/monmap"
} >> "$DIR/log/sh" 2>&1
ceph-mon -i a -f >> "$DIR/log/sh" 2>&1 &
monitor=$!
daemons="$daemons $monitor"
osd=$(cat /proc/sys/kernel/random/uuid)
ceph --connect-timeout 60 osd new "$osd" >> "$DIR/log/sh" 2>&1 &
asking=$!
until gone "$asking"; do
    if gone "$monitor"; then
        # What it had to say may be lost: it ends without flushing its log.
        { echo "the monitor ended at once; it does so where the disk is full:"; df -h "$DIR"; } >> "$DIR/log/sh"
        kill "$asking"
        exit 1
    fi
    sleep 0.02
done
wait "$asking"
ceph-osd -i 0 --mkfs --osd-uuid "$osd" >> "$DIR/log/sh" 2>&1
ceph-osd -i 0 -f >> "$DIR/log/sh" 2>&1 &
daemons="$daemons $!"
# Makes the gateway's pools, too.
radosgw-admin -n client.rgw.a user create --uid=test --display-name=test --access-key="$ACCESS_KEY" --secret-key="$SECRET_KEY" >> "$DIR/log/sh" 2>&1
radosgw -n client.rgw.a -f >> "$DIR/log/sh" 2>&1 &
daemons="$daemons $!"
echo ready
# Until the test process is gone.
while read -r command name access secret; do
    case $command in
        user) radosgw-admin -n client.rgw.a user create --uid="$name" --display-name="$name" --access-key="$access" --secret-key="$secret" >> "$DIR/log/sh" 2>&1 ;;
    esac
    echo done
done
