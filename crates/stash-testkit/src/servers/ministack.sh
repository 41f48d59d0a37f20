# ministack, which keeps its objects in memory. Run by servers/supervised.rs. Stops at the end of stdin, and takes DIR along.
set -eu
server=
finish() {
    status=$?
    trap - EXIT
    [ -z "$server" ] || kill -9 "$server" 2>/dev/null || true
    wait
    [ "$status" = 0 ] || tail -n 15 "$DIR"/log/* || true
    cd /
    rm -rf "$DIR"
}
trap finish EXIT
# Also when nobody reads what is printed any more, since the test process ended early.
trap 'exit 1' PIPE HUP INT TERM

export TMPDIR="$DIR" HOME="$DIR" BIND_HOST=127.0.0.1 GATEWAY_PORT="$PORTS"
"$PROGRAM" >> "$DIR/log/sh" 2>&1 &
server=$!
echo ready
cat > /dev/null
