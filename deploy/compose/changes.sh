# Writes a change file to play with: 50,000 orders at time 0, then at each of 100 times 50 orders that change their state,
# which is a row taken away and a row put in its place.
set -eu
[ ! -e "$1" ] || exit 0
awk 'BEGIN {
    print "id,customer,state,t,d"
    for (id = 1; id <= 50000; id++) printf "%d,customer-%d,new,0,1\n", id, id % 977
    for (t = 1; t <= 100; t++) for (n = 1; n <= 50; n++) {
        id = (t - 1) * 50 + n
        printf "%d,customer-%d,new,%d,-1\n%d,customer-%d,paid,%d,1\n", id, id % 977, t, id, id % 977, t
    }
}' > "$1.part"
mv "$1.part" "$1"
