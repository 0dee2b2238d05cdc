package appliance

import (
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
)

// adopt plans everything on top of what the kernel holds.
func (l *loop) adopt() (nft.Transition, uint64, error) {
	changes := l.store.Changes(0)
	tr, err := l.adoptOf(l.store, l.allServices())
	if err != nil {
		return tr, 0, err
	}
	l.adopted, l.moved, l.tampered, l.planned = true, false, false, changes.Revision
	return tr, changes.Revision, nil
}

func (l *loop) adoptOf(objs objects, services []string) (nft.Transition, error) {
	if l.tampered {
		l.kernel.early = nil // it may be from before
	}
	have, err := l.kernel.read()
	if err != nil {
		return nft.Transition{}, err
	}
	l.hosted.place(l.cfg.nodePortAddresses(l.facts), l.cfg.loopbackAddresses(l.facts))
	tr := l.planner.adopt(have, l.cfg.box(l.facts), l.cfg.resolveFacts(l.facts, l.hosts), objs, services)
	if !tr.Empty() { // not all rules were there, and who knows for how long
		l.planner.flows.Restored()
	}
	return tr, nil
}

// adoptAhead is adopt on what the store is about to hold, while the disk writes it: at a
// first start either takes long. The loop waits meanwhile. When it cannot be done now, adopt
// comes later, and says why.
func (l *loop) adoptAhead(objs *store.Ahead) {
	if l.adopted || l.facts == nil {
		return
	}
	if tr, err := l.adoptOf(objs, objs.ServiceKeys()); err == nil {
		l.ahead = &tr
	}
}

// dropAhead forgets what was planned ahead, as it was not stored.
func (l *loop) dropAhead() {
	if l.ahead == nil || l.adopted {
		return
	}
	for _, key := range l.planner.known() {
		l.hosted.record(key, nil, nil)
	}
	l.planner, l.ahead = l.planner.anew(), nil
}

// allServices are the Services that are stored and those that are planned.
func (l *loop) allServices() []string {
	keys := l.planner.known()
	for key := range l.store.Services() {
		keys = append(keys, key)
	}
	return keys
}
