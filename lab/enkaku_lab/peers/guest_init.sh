#!/bin/busybox sh
# The guest's only process of its own: loads the modules, brings up the network, starts iscsid, then
# takes orders. An order is a line `run ID SCRIPT`, the script in base64; several may run at once. What
# a script writes comes back as lines `out ID TEXT`, its end as `end ID CODE`. `hello` says it is up.
/bin/busybox mkdir -p /bin /dev /proc /sys /tmp /run /etc/iscsi /var/lib/iscsi /var/run
/bin/busybox --install -s /bin
export PATH=/sbin:/bin LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu HOME=/
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs -o size=90% tmp /tmp
mount -t tmpfs run /run
mkdir -p /run/lock/iscsi /var/lock /etc/iscsi/nodes /etc/iscsi/send_targets /etc/target
ln -sf /run/lock/iscsi /var/lock/iscsi
echo root:x:0:0:root:/:/bin/sh >/etc/passwd
echo root:x:0: >/etc/group

# iscsid asks libkmod for its transport module, which looks for the kernel's module folder.
mkdir -p "/lib/modules/$(uname -r)"
while read -r module; do
    insmod "/lib/modules/$module.ko" || echo "guest: $module was not loaded"
done </etc/modules
mount -t configfs none /sys/kernel/config

ifconfig lo up
ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up
route add default gw 10.0.2.2

echo "InitiatorName=iqn.2026-11.lab.enkaku:guest" >/etc/iscsi/initiatorname.iscsi
echo "node.startup = manual" >/etc/iscsi/iscsid.conf
iscsid -f -d 2 >/tmp/iscsid.log 2>&1 3>&- &

# The port appears some time after its driver; redirecting earlier would make an ordinary file.
until port=$(grep -lx orders /sys/class/virtio-ports/*/name 2>/dev/null); do sleep 0.1; done
port=/dev/$(basename "$(dirname "$port")")
until [ -c "$port" ]; do sleep 0.1; done
exec 3<>"$port"
order() {
    echo "$2" | base64 -d >"/tmp/order.$1"
    {
        sh "/tmp/order.$1" 2>&1 </dev/null 3>&-
        echo $? >"/tmp/code.$1"
    } | while IFS= read -r line; do echo "out $1 $line" >&3; done
    echo "end $1 $(cat "/tmp/code.$1")" >&3
    rm -f "/tmp/order.$1" "/tmp/code.$1"
}
echo hello >&3
while read -r word id script <&3; do
    [ "$word" = run ] && order "$id" "$script" &
done
poweroff -f
