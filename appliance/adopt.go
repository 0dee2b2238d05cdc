package appliance

import "svcctl.io/svcctl/nft"

// adopt plans everything on top of what the kernel holds.
func (l *loop) adopt() (nft.Transition, uint64, error) {
	changes := l.store.Changes(0)
	if l.tampered {
		l.kernel.early = nil // it may be from before
	}
	have, err := l.kernel.read()
	if err != nil {
		return nft.Transition{}, 0, err
	}
	l.hosted.place(l.cfg.nodePortAddresses(l.facts), l.cfg.loopbackAddresses(l.facts))
	tr := l.planner.adopt(have, l.cfg.box(l.facts), l.cfg.resolveFacts(l.facts), l.store, l.allServices())
	if !tr.Empty() { // not all rules were there, and who knows for how long
		l.planner.flows.Restored()
	}
	l.adopted, l.moved, l.tampered, l.planned = true, false, false, changes.Revision
	return tr, changes.Revision, nil
}

// allServices are the Services that are stored and those that are planned.
func (l *loop) allServices() []string {
	keys := l.planner.known()
	for key := range l.store.Services() {
		keys = append(keys, key)
	}
	return keys
}
