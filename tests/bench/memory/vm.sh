#!/bin/bash
# The daemon under limits of control groups of version 2, in a virtual machine with a kernel of its own: tests/bench/memory/vm.sh [MODEL.gguf] [BUILD]
# Needs qemu-system-x86, busybox-static, cpio, e2fsprogs and curl, and apt-get to download a kernel. Everything lies in a folder that is removed at the end.
# Prints a line a limit: how many of 8 requests were answered, the kernel's oom_kill, the peak, the rungs.
set -eu
build=$(realpath "${2:-build/release}") model=${1:+$(realpath "$1")}
limits=${LIMITS:-"120 56 44"} prompt=${PROMPT:-300} answer=${ANSWER:-16}
# Without one, a model of few weights and much KV (16 KiB a token), since an emulated machine computes slowly.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
[ -n "$model" ] || { "$build/tests/gen/tiny" model.gguf --dtype Q8_0 --layers 16 --embd 256 --heads 4 --kv-heads 4 --ff 256 --ctx 512; model=$work/model.gguf; }

image=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[^ ]*\)/\1/p' | head -1)
apt-get download "$image" >/dev/null 2>&1
dpkg-deb -x linux-image-*.deb kernel
mkdir -p root/{bin,proc,sys,dev,tmp,etc,data,run,modules} disk
cp "$(command -v busybox)" root/bin/busybox
# modules in the order in which they need each other
for m in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk crc16 crc32c_generic libcrc32c mbcache jbd2 ext4; do
    found=$(find kernel/lib/modules -name "$m.ko" | head -1)
    [ -z "$found" ] || cp "$found" root/modules/
done
take() { # a program and what it loads
    install -D "$1" "root$2"
    ldd "$1" | grep -o '/[^ ]*' | while read -r lib; do [ -e "root$lib" ] || install -D "$lib" "root$lib"; done
}
take "$build/pantheond" /bin/pantheond
take "$(command -v curl)" /bin/curl
cp "$model" disk/model.gguf
mkfs.ext4 -q -d disk disk.img "$(($(stat -c %s "$model") / 1024 * 12 / 10 + 20000))k"

cat > root/init <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc none /proc; mount -t sysfs none /sys; mount -t devtmpfs none /dev
for m in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk crc16 crc32c_generic libcrc32c mbcache jbd2 ext4; do
    [ -e /modules/$m.ko ] && { insmod /modules/$m.ko || echo "vm: module $m"; }
done
mount -t cgroup2 none /sys/fs/cgroup && echo +memory > /sys/fs/cgroup/cgroup.subtree_control
mount -t ext4 -o ro /dev/vda /data || echo "vm: no disk"
ip link set lo up
. /tests
echo "vm: done"
poweroff -f
INIT
cat > root/tests <<TESTS
for limit in $limits; do
    g=/sys/fs/cgroup/t\$limit; mkdir \$g; echo \${limit}M > \$g/memory.max
    echo 3 > /proc/sys/vm/drop_caches
    cat > /tmp/m.yaml <<M
version: 1
server: { listen: [ "127.0.0.1:8080" ], admin_socket: /run/a.sock }
host: { ram_reserve: 16MiB, load_timeout: 20min }
models:
  - { name: m, source: { path: /data/model.gguf }, ctx_cap: 512, max_sessions: 8, max_concurrent: 8, memory: trust, queue: { depth: 8, timeout: 3600s } }
M
    sh -c "echo \\\$\\\$ > \$g/cgroup.procs; STATE_DIRECTORY=/tmp exec pantheond --config /tmp/m.yaml" > /tmp/log 2>&1 &
    until curl -sf http://127.0.0.1:8080/ready > /dev/null; do sleep 1; grep -q 'cannot\|error=' /tmp/log && break; done
    for i in 1 2 3 4 5 6 7 8; do
        ids=""; k=0; while [ \$k -lt $prompt ]; do ids="\$ids\${ids:+,}\$((3 + (i * 7919 + k * 104729) % 250))"; k=\$((k + 1)); done
        curl -s -m 3600 -o /tmp/a\$i -w '%{http_code}\n' http://127.0.0.1:8080/v1/completions -H 'Content-Type: application/json' \
            -d "{\"model\":\"m\",\"prompt\":[\$ids],\"max_tokens\":$answer,\"ignore_eos\":true}" > /tmp/s\$i &
        pids="\$pids \$!"
    done
    wait \$pids; pids=""
    echo "vm: limit=\${limit}MiB answered=\$(cat /tmp/s? | grep -c 200) of 8, \$(grep '^oom_kill ' \$g/memory.events), peak=\$((\$(cat \$g/memory.peak 2>/dev/null || echo 0) / 1048576))MiB, rungs=\$(grep -c event=rung_applied /tmp/log), \$(sed -n 's/.*event=memory_pressure text=//p' /tmp/log | tail -1)"
    kill \$(cat \$g/cgroup.procs); while [ -n "\$(cat \$g/cgroup.procs)" ]; do sleep 1; done
done
TESTS
chmod +x root/init
(cd root && find . | cpio -o -H newc --quiet | gzip -1) > initrd.gz
timeout "${T:-1500}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 1536 -nographic -no-reboot -nic none -kernel kernel/boot/vmlinuz-* -initrd initrd.gz \
    -drive file=disk.img,if=virtio,format=raw,readonly=on -append "console=ttyS0 quiet rdinit=/init mitigations=off" < /dev/null | tee console | grep -ao --line-buffered "vm: .*" || { tail -30 console >&2; exit 1; }
