# A udevd in the guest, with Debian's rules for disks and the device mapper. $files: where the packages are.
rules=$files/lib/udev/rules.d
[ -d "$rules" ] || rules=$files/usr/lib/udev/rules.d
program=$files/bin/udevadm
[ -e "$program" ] || program=$files/usr/bin/udevadm
mkdir -p /run/udev/rules.d
for name in 50-udev-default 60-block 60-persistent-storage 55-dm 60-persistent-storage-dm 95-dm-notify; do
    cp "$rules/$name.rules" /run/udev/rules.d/
done
# The rules start dmsetup by this name, and in no environment of ours.
[ -e /sbin/dmsetup ] || {
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$LD_LIBRARY_PATH" "$(command -v dmsetup)" >/sbin/dmsetup
    chmod 755 /sbin/dmsetup
}
# It is a daemon by the name that it is called by.
cp "$program" /run/systemd-udevd
cp "$program" /run/udevadm
unset DM_DISABLE_UDEV
/run/systemd-udevd --daemon
[ -S /run/udev/control ] || exit 1
