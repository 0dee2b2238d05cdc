#!/bin/bash
# Runs the blocks of commands of a page of the manual: manual.sh PROGRAMS REPOSITORY FILES BLOCKS [empty]. The box has the package, with the files
# of manualfiles.sh and the objects that pages name, unless it is to be empty. It runs in a network and a mount namespace of its own.
set -eu -o pipefail
programs=$1 repository=$2 files=$3 blocks=$4 empty=${5:-}
mount --make-rprivate /
mount -t proc proc /proc
up=$blocks/up
mkdir "$up" && mount -t tmpfs tmpfs "$up"
for dir in /etc /var/lib /var/backups /root /usr/local; do
    mkdir -p "$up$dir/upper" "$up$dir/work"
    mount -t overlay overlay -o "lowerdir=$dir,upperdir=$up$dir/upper,workdir=$up$dir/work" "$dir"
done
mount -t tmpfs tmpfs /run
export PATH=$programs:$PATH HOME=/root
mkdir -p /etc/svcctl/manifests /run/svcctl /var/lib/svcctl
# A box with a route to everywhere.
ip link set lo up
ip link add eth0 type veth peer name internet
ip addr add 192.0.2.1/24 dev eth0
ip link set eth0 up
ip link set internet up
ip route add default via 192.0.2.254 dev eth0
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
sed 's/^#metricsListen:.*/metricsListen: 127.0.0.1:9753/; s/^#listen:.*/listen: 127.0.0.1:6443/; s/^#loadBalancerPool:.*/loadBalancerPool: [198.51.100.0\/28]/' \
    "$repository/examples/systemd/svcctl.conf" >/etc/svcctl/svcctl.yaml
svcctl serve --config /etc/svcctl/svcctl.yaml >/run/svcctl/log 2>&1 & pid=$!
trap 'kill $pid; wait $pid' EXIT
svcctl wait --for ready --timeout 5m >/dev/null
mkdir "$up/work" && cd "$up/work"
if [ -z "$empty" ]; then
    cp -a "$files/." .
    mkdir -p /etc/keepalived /etc/haproxy /root/.config/fish/completions /root/.kube /var/backups
    cp "$repository/examples/keepalived/keepalived.conf" /etc/keepalived/
    cp front.yaml /etc/svcctl/manifests/
    rm front.yaml
    export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.com GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.com
    svcctl apply -f web.yaml -f shop/ -f edge.yaml >/dev/null
    svcctl expose cache --port 11211 --to 10.1.2.31 --apply >/dev/null
    svcctl wait >/dev/null
    svcctl admin export svcctl.jsonl
fi
for block in "$blocks"/*.sh; do
    code=0
    bash -eu -o pipefail "$block" >"$block.out" 2>&1 </dev/null || code=$?
    echo $code >"$block.code"
done
