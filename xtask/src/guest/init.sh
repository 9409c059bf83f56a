#!/bin/busybox sh
# The first process of the guest: mounts the usual file systems, runs /guest/command, and says how
# the command ended. The host reads the two markers: see `Scanner` in guest/mod.rs.
export PATH=/usr/local/bin:/usr/bin:/bin HOME=/root TERM=dumb LANG=C.UTF-8
/bin/busybox --install -s /usr/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr
ip link set lo up
hostname guest
date -s "@$(cat /guest/time)" > /dev/null
# Lines end as the command ends them.
stty -opost < /dev/console
chmod 755 /
cd /root
printf '\036guest: begin\036'
# Not by busybox, whose shell runs its own grep where another one is in /usr/bin.
setsid /bin/dash /guest/command < /dev/null
printf '\036guest: end %d\036' $?
poweroff -f
