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
ip -batch - <<IP
link set lo up
link add eth0 type veth peer name internet
addr add 192.0.2.1/24 dev eth0
link set eth0 up
link set internet up
route add default via 192.0.2.254 dev eth0
IP
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
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
    mv front.yaml /etc/svcctl/manifests/
    export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.com GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.com
    svcctl apply -f web.yaml -f shop/ -f edge.yaml -f cache.yaml --wait >/dev/null
    rm cache.yaml
    svcctl admin export svcctl.jsonl
fi
for block in "$blocks"/*.sh; do
    code=0
    bash -eu -o pipefail "$block" >"$block.out" 2>&1 </dev/null || code=$?
    echo $code >"$block.code"
done
