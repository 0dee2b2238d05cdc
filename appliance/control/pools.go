package control

import (
	"fmt"
	"slices"

	"svcctl.io/svcctl/appliance/advertise"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// Pools computes a Plan from the objects of MetalLB's kinds whenever they change. It sets the address pools of the store from the Plan, and passes
// the Plan to the function use.
type Pools struct {
	store    *store.Store
	box      advertise.Box
	use      func(*advertise.Plan)
	seen     map[string][]object.Object // the objects that plan was made from, by kind
	node     object.Object              // the Node that plan was made from
	plan     *advertise.Plan            // a Plan with pools that the store does not have yet; nil: there is none
	reported bool                       // Sync has reported that the pools of plan differ
	plans    int                        // the number of Plans made
}

// NewPools returns Pools without a Plan; the first Sync makes one.
func NewPools(objects *store.Store, box advertise.Box, use func(*advertise.Plan)) *Pools {
	return &Pools{store: objects, box: box, use: use}
}

// followed are the kinds of objects that a Plan depends on.
var followed = []string{
	object.KindIPAddressPool, object.KindL2Advertisement, object.KindBGPAdvertisement, object.KindCommunity,
	object.KindBFDProfile, object.KindBGPPeer, object.KindSecret, object.KindNamespace,
}

// Sync computes a new Plan when one of the objects changed, and passes its pools to the store. changed reports whether the pools differ from the
// previous ones. After an error the next call tries again to allocate addresses.
func (p *Pools) Sync() (changed bool, err error) {
	all := map[string][]object.Object{}
	for _, kind := range followed {
		if all[kind], _, err = p.store.List(kind, "", 0); err != nil {
			return false, fmt.Errorf("list the sources of addresses: %w", err)
		}
	}
	// Secrets and Namespaces change for other reasons, too: they count while an object refers to them.
	if !slices.ContainsFunc(all[object.KindBGPPeer], namesSecret) {
		delete(all, object.KindSecret)
	}
	if !slices.ContainsFunc(all[object.KindIPAddressPool], selectsNamespaces) {
		delete(all, object.KindNamespace)
	}
	same := p.seen != nil
	for _, kind := range followed {
		same = same && isList(all[kind], p.seen[kind])
	}
	node, _ := p.store.Get(object.Ref{Kind: object.KindNode, Name: p.box.NodeName})
	if same && node == p.node {
		return p.give()
	}
	objects := &advertise.Objects{
		Pools: of[*object.IPAddressPool](all[object.KindIPAddressPool]), L2: of[*object.L2Advertisement](all[object.KindL2Advertisement]),
		BGP: of[*object.BGPAdvertisement](all[object.KindBGPAdvertisement]), Communities: of[*object.Community](all[object.KindCommunity]),
		Profiles: of[*object.BFDProfile](all[object.KindBFDProfile]), Peers: of[*object.BGPPeer](all[object.KindBGPPeer]),
		Secrets: of[*object.Secret](all[object.KindSecret]), Namespaces: of[*object.Namespace](all[object.KindNamespace]),
	}
	if node != nil {
		objects.Node = node.GetMeta().Labels
	}
	p.seen, p.node, p.plan, p.reported = all, node, advertise.Compile(objects, &p.box), false
	p.plans++
	p.use(p.plan)
	return p.give()
}

// give passes the pools of the last Plan to the store, which allocates load balancer IPs from them. If the store already has them, it only allocates
// again for Services that wait for an address. changed reports whether the pools changed, at most once for each Plan.
func (p *Pools) give() (changed bool, err error) {
	if p.plan == nil {
		return false, p.store.GiveFreed()
	}
	if changed, err = p.store.SetPools(p.plan.Pools); err == nil {
		p.plan = nil
	}
	changed, p.reported = changed && !p.reported, p.reported || changed
	return changed, err
}

func namesSecret(o object.Object) bool {
	peer, is := o.(*object.BGPPeer)
	return is && peer.Spec.PasswordSecret.Name != ""
}

func selectsNamespaces(o object.Object) bool {
	pool, is := o.(*object.IPAddressPool)
	return is && pool.Spec.ServiceAllocation != nil && len(pool.Spec.ServiceAllocation.NamespaceSelectors) > 0
}

// isList reports whether two lists from the store are the same slice. The store replaces a list when it changes, so they have equal content
// then.
func isList(a, b []object.Object) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// of returns the objects of a list that have type T.
func of[T object.Object](list []object.Object) []T {
	all := make([]T, 0, len(list))
	for _, o := range list {
		if typed, is := o.(T); is {
			all = append(all, typed)
		}
	}
	return all
}
