#!/bin/bash
# Makes the files that pages of the manual name in a new directory, once for all pages: manualfiles.sh PROGRAMS REPOSITORY FILES.
set -eu -o pipefail
programs=$1 repository=$2
export PATH=$programs:$PATH
mkdir "$3" && cd "$3"
# Files, some of them in a work tree of git.
export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.com GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.com
git init -q
ln -s "$repository/examples" examples
mkdir manifests shop new-release
cp "$repository/examples/quickstart/web.yaml" web.yaml
svcctl expose front --port 80:8080 --to 10.1.2.21 >manifests/front.yaml
svcctl expose new --port 80:8080 --to 10.1.2.51 | tee new.yaml >new-release/new.yaml
cp -r manifests manifests.new
cp manifests/front.yaml front.yaml # for the directory of the box
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
svcctl expose cache --port 11211 --to 10.1.2.31 >cache.yaml
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
