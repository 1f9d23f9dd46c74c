# The guest's process 1. The root is the host's, read-only; over it a file system in memory, so nothing is changed there.
# $busybox is static: each fork costs a guest of this kind some 20 ms.
fail() {
    echo "guest: $*"
    $busybox poweroff -f
}
must() { "$@" || fail "$*"; }

$busybox mount -t proc proc /proc || fail "no /proc"
for module in $modules; do must $busybox insmod "$module"; done
root=/mnt/root
must $busybox mount -t tmpfs -o size=100%,mode=755 tmpfs /mnt
must $busybox mkdir /mnt/upper /mnt/work $root
must $busybox mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay $root
must $busybox mount -t proc proc $root/proc
must $busybox mount -t sysfs sysfs $root/sys
must $busybox mount -t devtmpfs devtmpfs $root/dev
must $busybox mount -t tmpfs -o size=100%,mode=755 tmpfs $root/run
must $busybox mkdir -p $root/dev/pts $root/dev/shm $root/run/share $root/run/tmp $root/run/state
must $busybox mount -t devpts devpts $root/dev/pts
must $busybox mount -t tmpfs -o mode=1777 tmpfs $root/dev/shm
must $busybox mount -t hostfs -o "$share" none $root/run/share
must $busybox chmod 1777 $root/run/tmp
# Raw: a terminal would change line ends.
must $busybox stty raw -echo -opost -F $root/dev/ttyS0
exec $busybox chroot $root $busybox sh -c '
    ln=$0" ln -s"; $ln /proc/self/fd /dev/fd; $ln fd/0 /dev/stdin; $ln fd/1 /dev/stdout; $ln fd/2 /dev/stderr
    . /run/share/environment
    cd "$directory"
    $0 sh /run/share/command </dev/null >/dev/ttyS0 2>&1
    echo $? >/run/share/status
    $0 sync
    $0 poweroff -f
' "$busybox"
