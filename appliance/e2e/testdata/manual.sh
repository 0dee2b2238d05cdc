#!/bin/bash
# Runs the blocks of commands of a page of the manual: manual.sh PROGRAMS REPOSITORY BLOCKS [empty]. The box has the package, with the files and
# objects that pages name, unless it is to be empty. It runs in a network and a mount namespace of its own.
set -eu -o pipefail
programs=$1 repository=$2 blocks=$3 empty=${4:-}
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
    # Files, some of them in a work tree of git.
    export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.com GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.com
    git init -q
    ln -s "$repository/examples" examples
    mkdir -p manifests shop new-release /etc/keepalived /etc/haproxy /root/.config/fish/completions /root/.kube /var/backups
    cp "$repository/examples/quickstart/web.yaml" web.yaml
    cp "$repository/examples/keepalived/keepalived.conf" /etc/keepalived/
    svcctl expose front --port 80:8080 --to 10.1.2.21 >manifests/front.yaml
    svcctl expose new --port 80:8080 --to 10.1.2.51 | tee new.yaml >new-release/new.yaml
    cp -r manifests manifests.new
    cp manifests/front.yaml /etc/svcctl/manifests/
    sed -i s/10.1.2.21/10.1.2.22/ manifests/front.yaml
    git add manifests && git commit -qm manifests && git branch next
    printf '#!/bin/sh\n' >worker && chmod +x worker
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=shop.example -keyout key.pem -out cert.pem 2>/dev/null
    # Objects.
    cat >shop/shop.yaml <<YAML
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
$(svcctl expose web -n shop --port 80:8080 --to 10.1.2.11 --to 10.1.2.12)
---
$(svcctl expose api -n shop --port 80:8080 --to 10.1.2.13)
---
$(svcctl expose db -n shop --port 5432 --to 10.1.2.14)
YAML
    cat >edge.yaml <<YAML
apiVersion: v1
kind: Service
metadata: {name: edge, annotations: {svcctl.io/port-ranges: rtp=10000-20000/UDP}}
spec: {type: LoadBalancer, loadBalancerIP: 198.51.100.4, ports: [{name: https, port: 443}, {name: rtp, port: 9999, nodePort: 30080, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: edge-1, labels: {kubernetes.io/service-name: edge}}
addressType: IPv4
ports: [{name: https, port: 443}, {name: rtp, port: 9999, protocol: UDP}]
endpoints: [{addresses: [10.1.2.41]}]
---
apiVersion: v1
kind: Secret
type: kubernetes.io/tls
metadata: {name: shop}
data: {tls.crt: $(base64 -w0 cert.pem), tls.key: $(base64 -w0 key.pem)}
---
apiVersion: v1
kind: Service
metadata: {name: shop, annotations: {svcctl.io/tls-secret: shop}}
spec: {ports: [{port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: shop-1, labels: {kubernetes.io/service-name: shop}}
addressType: IPv4
ports: [{port: 443}]
endpoints: [{addresses: [10.1.2.42]}]
YAML
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
