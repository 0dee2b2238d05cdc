#!/usr/bin/env bash
# Two boxes on a segment, in half a minute, on one machine: a client that keeps downloading from an address that both
# serve, while the box that answers dies. Then the same with keepalived, if it is installed, for comparison.
# Every host is a network namespace of its own; nothing is left behind, also after Ctrl-C.
#
# make demo-pair builds what this needs; by hand: examples/demo/pair.sh PATH-OF-SVCCTL PATH-OF-DEMO
set -euo pipefail

name=pair
hosts=(switch client backend box1 box2)
vip=192.0.2.50
. "$(dirname "$0")/common.sh"

# cable HOST IF BRIDGE ADDRESS connects an interface of a host to a bridge of the switch.
cable() {
    ip link add "$1-$2" netns "$id-switch" type veth peer name "$2" netns "$id-$1"
    on switch ip link set "$1-$2" master "$3" up
    on "$1" ip address add "$4/24" dev "$2"
    on "$1" ip link set "$2" up
}

network() {
    local name
    namespaces
    for name in lan inside; do on switch ip link add "$name" type bridge; on switch ip link set "$name" up; done
    cable client eth0 lan 192.0.2.9
    cable backend eth0 inside 10.1.0.11
    for name in 1 2; do
        on "box$name" sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
        cable "box$name" lan lan "192.0.2.$name"
        cable "box$name" in inside "10.1.0.$name"
    done
    start backend backend "$demo" serve -name backend -listen 10.1.0.11:8080
}

manifests() {
    mkdir "$run/manifests"
    cat >"$run/manifests/web.yaml" <<YAML
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: LoadBalancer, loadBalancerIP: $vip, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.11]}]
YAML
}

serve() {
    start "serve$1" "box$1" "$svcctl" serve --manifests "$run/manifests" --data-dir "$run/data$1" --socket "$run/$1.sock" \
        --load-balancer-pool 192.0.2.50-192.0.2.59 --node-name "box$1"
    until_true 20 "$svcctl" wait --for ready --timeout 2s --socket "$run/$1.sock" || fail "box$1 did not become ready within 20 s"
}

announce() {
    mkdir -p "$run/announce$1"
    start "announce$1" "box$1" "$svcctl" announce --l2 lan --vrid 51 --priority "$((300 - 100 * $1))" --state-dir "$run/announce$1" --socket "$run/$1.sock"
}

# answers reports which box the neighbors take the address to: the one with this Ethernet address.
mac_of() { on "box$1" cat /sys/class/net/lan/address; }
answers() {
    on client ip neigh flush dev eth0
    on client "$demo" ask -n 1 "http://$vip/" && on client ip neigh show "$vip" | grep -qF "$(mac_of "$1")"
}

announced() { "$svcctl" announcements --socket "$run/1.sock" | grep -q announced; }

# dies BOX: no program of it runs any more, and its cables carry nothing.
dies() {
    local name
    for name in "serve$1" "announce$1" "keepalived$1"; do end "$name"; done
    on "box$1" ip link set lan down
    on "box$1" ip link set in down
}
lives() {
    on "box$1" ip link set lan up
    on "box$1" ip link set in up
}

# measured COMMAND... downloads for a few seconds, with the command a second after it began.
measured() {
    on client "$demo" gap -for "$seconds" "http://$vip/" >"$run/gap" 2>&1 &
    local asking=$!
    sleep 1
    "$@"
    wait "$asking" || { indent <"$run/gap"; fail 'the downloads did not go on'; }
    indent <"$run/gap"
}
seconds=4s

printf '%s\n' "
                      ┌── box1 ──┐
    client ── segment ┤          ├── backend 10.1.0.11:8080
                      └── box2 ──┘
          VIP $vip:80, on both boxes, which elect who answers"

network
manifests

step '1. Two boxes with the same manifests; the first one answers'
command_line 'svcctl serve --manifests manifests --load-balancer-pool 192.0.2.50-192.0.2.59'
command_line 'svcctl announce --l2 lan --vrid 51 --priority 200   # box2: 100'
serve 1
serve 2
announce 1
until_true 20 answers 1 || fail 'box1 does not answer'
announce 2
until_true 20 announced || fail 'box1 does not say that it announces'
"$svcctl" announcements --socket "$run/1.sock" | indent

step '2. A planned hand-over, while a client downloads'
command_line 'svcctl announce drain   # on box1'
measured "$svcctl" drain --yes --socket "$run/1.sock"
until_true 20 answers 2 || fail 'box2 does not answer'
"$svcctl" undrain --socket "$run/1.sock" >/dev/null

step '3. The box that answers dies, while a client downloads'
sleep 1
measured dies 2
until_true 20 answers 1 || fail 'box1 does not answer'

for interval in 0.1 1; do
    command -v keepalived >/dev/null || { step 'keepalived is not installed: nothing to compare with'; break; }
    [ "$interval" = 1 ] && seconds=8s
    step "4. For comparison: keepalived moves the address, advertised every $interval s"
    lives 2
    for box in 1 2; do
        end "announce$box"; end "serve$box"
        on "box$box" ip address del "$vip/32" dev lan 2>/dev/null || true
        serve "$box"
        cat >"$run/keepalived$box.conf" <<CONF
global_defs { vrrp_garp_master_delay 0
 vrrp_version 3 }
vrrp_instance vip { state BACKUP
 interface lan
 virtual_router_id 52
 priority $((300 - 100 * box))
 advert_int $interval
 virtual_ipaddress { $vip/32 dev lan } }
CONF
    done
    for box in 1 2; do
        start "keepalived$box" "box$box" keepalived -n -l -f "$run/keepalived$box.conf" -p "$run/k$box-$interval.pid" -r "$run/kv$box-$interval.pid" -c "$run/kc$box-$interval.pid"
    done
    until_true 20 answers 1 || fail 'keepalived on box1 does not answer'
    sleep 2
    measured dies 1
    lives 1
    for box in 1 2; do end "keepalived$box"; done
done

step 'All of it was true.'
