# A PostgreSQL for tests. Run by servers/supervised.rs, which says what DIR and PORTS are. Reads commands from stdin, one a
# line, and answers each with "done": "kill" is SIGKILL to all of the server, "start" starts it again over the same files.
# Stops at the end of stdin, and takes DIR along.
set -eu
server=
finish() {
    status=$?
    trap - EXIT
    # At once, but orderly: shared memory is given back.
    [ -z "$server" ] || kill -QUIT "$server" 2>/dev/null || true
    wait
    [ "$status" = 0 ] || tail -n 30 "$DIR"/log/* || true
    cd /
    rm -rf "$DIR"
}
trap finish EXIT
# Also when nobody reads what is printed any more, since the test process ended early.
trap 'exit 1' PIPE HUP INT TERM

as=
if [ "$(id -u)" = 0 ]; then
    # PostgreSQL refuses to run as root. What it writes belongs to the account that its package made.
    as="setpriv --reuid=postgres --regid=postgres --clear-groups"
    chown -R postgres "$DIR"
fi
cd "$DIR"
export LC_ALL=C

gone() { case $(cut -d ' ' -f 3 "/proc/$1/stat" 2>/dev/null || true) in '' | Z) true ;; *) false ;; esac }

start() {
    $as "$BIN/postgres" -D "$DIR/data" >> "$DIR/log/server" 2>&1 &
    server=$!
    until "$BIN/pg_isready" -q -h 127.0.0.1 -p "$PORTS"; do
        ! gone "$server" || exit 1
        sleep 0.02
    done
}

crash() {
    # Stopped first, so that it has no child that was not seen.
    kill -STOP "$server"
    children=$(cat "/proc/$server/task/$server/children" 2>/dev/null || true)
    kill -9 "$server" $children 2>/dev/null || true
    wait "$server" || true
    server=
    # A new server refuses while a child of the old one holds its memory.
    for child in $children; do
        until gone "$child"; do sleep 0.02; done
    done
}

(umask 077 && printf '%s\n' "$PASSWORD" > "$DIR/password")
[ -z "$as" ] || chown postgres "$DIR/password"
$as "$BIN/initdb" -D "$DIR/data" -U stash --pwfile="$DIR/password" -A scram-sha-256 -E UTF8 --locale=C --no-sync >> "$DIR/log/initdb" 2>&1
rm "$DIR/password"
# Without fsync: a killed process loses nothing that the kernel has, and no test pulls the plug.
cat >> "$DIR/data/postgresql.conf" <<C
port = $PORTS
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 200
shared_buffers = 32MB
dynamic_shared_memory_type = mmap
fsync = off
full_page_writes = off
C
if [ "$TLS" = yes ]; then
    {
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj '/CN=authority of a test' \
            -keyout "$DIR/authority.key" -out "$DIR/authority.pem"
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '/CN=localhost' \
            -keyout "$DIR/data/server.key" -out "$DIR/server.csr"
        printf '%s\n' 'subjectAltName = DNS:localhost, IP:127.0.0.1' 'basicConstraints = CA:FALSE' > "$DIR/server.ext"
        openssl x509 -req -in "$DIR/server.csr" -CA "$DIR/authority.pem" -CAkey "$DIR/authority.key" -CAcreateserial -days 30 \
            -extfile "$DIR/server.ext" -out "$DIR/data/server.crt"
        chmod 600 "$DIR/data/server.key"
        [ -z "$as" ] || chown postgres "$DIR/data/server.key" "$DIR/data/server.crt"
    } >> "$DIR/log/openssl" 2>&1
    echo 'ssl = on' >> "$DIR/data/postgresql.conf"
fi
start
echo ready
while read -r command; do
    case $command in
        kill) crash ;;
        start) start ;;
    esac
    echo done
done
