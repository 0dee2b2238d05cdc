package nft

func (t *tableState) add(f *fragment, family Family, box *Box) {
	for _, s := range f.sets {
		t.keepSet(s.Name)
		t.sets[s.Name] = s
	}
	for _, e := range f.elements {
		t.put(e)
	}
	for _, a := range f.endpoints {
		key := a.As16()
		if t.endpoints[key]++; t.endpoints[key] == 1 {
			t.put(placed{set: setHairpin, key: t.pairKey(a)})
		}
	}
	t.use(f, 1)
	for _, name := range f.shared {
		if t.shared[name]++; t.shared[name] == 1 && !isFirstPick(name) {
			t.setChain(sharedChain(name, family, box))
		}
	}
	for _, c := range f.chains {
		t.setChain(c)
	}
}

func (t *tableState) remove(f *fragment) {
	for _, e := range f.elements {
		t.delete(e)
	}
	for _, a := range f.endpoints {
		key := a.As16()
		if t.endpoints[key]--; t.endpoints[key] == 0 {
			delete(t.endpoints, key)
			t.delete(placed{set: setHairpin, key: t.pairKey(a)})
		}
	}
	t.use(f, -1)
	for _, name := range f.shared {
		if t.shared[name]--; t.shared[name] == 0 {
			delete(t.shared, name)
			if !isFirstPick(name) {
				t.dropChain(name)
			}
		}
	}
	for _, s := range f.sets {
		t.keepSet(s.Name)
		delete(t.sets, s.Name)
	}
	for _, c := range f.chains {
		t.dropChain(c.Name)
	}
}

// use counts what a fragment uses of the addresses, ports and protocols: once more, or once
// less.
func (t *tableState) use(f *fragment, by int32) {
	for _, v := range f.vips {
		u := t.touch(v.addr)
		if v.named {
			u.named += by
		} else {
			u.frontends += by
		}
		if v.ready {
			u.ready += by
		}
		t.addresses[v.addr] = u
	}
	for _, a := range f.original {
		u := t.touch(a)
		u.sourceNAT += by
		t.addresses[a] = u
	}
	for _, a := range f.insideOnly {
		u := t.touch(a)
		u.inside += by
		t.addresses[a] = u
	}
	for _, key := range f.hosted {
		if t.hosted[key] += int(by); t.hosted[key] == 0 {
			delete(t.hosted, key)
		}
	}
	t.answersHere += int(by) * f.answersHere
	t.limits += int(by) * f.limits
	t.useSourceSets(f, int(by))
	t.useTimeouts(f, int(by))
	t.useAdopted(f, int(by))
	for proto := range f.uses {
		t.protocols[proto] += int(by)
	}
}

// finish updates what depends on the whole table and, if tr is not nil, appends the operations of
// the change to it.
func (t *tableState) finish(f Family, box *Box, tr *Transition) {
	t.setBoxElements(f, box)
	t.settleAddresses()
	t.settleAdopted()
	t.setInsideElements(f, box)
	t.settleSourceSets(f)
	for _, s := range staticSets {
		switch _, is := t.sets[s.Name]; {
		case !is && t.has(s.Name):
			t.keepSet(s.Name)
			t.sets[s.Name] = s.on(box)
		case is && !t.has(s.Name):
			t.keepSet(s.Name)
			delete(t.sets, s.Name)
		}
	}
	t.setStaticChains(f, box)
	t.setCounters(box)
	t.preparePicks(f, box)
	t.prepareDraws()
	if tr != nil {
		t.emit(f, tr)
	}
	for _, n := range t.tallies {
		n.all = nil
	}
	t.change = change{forget: t.forget, caps: t.caps} // the rest is large after a large one
}

// setStaticChains makes the chains that exist once. They are few and cheap to
// build, so all are built and compared. Chains of elements keep theirs.
func (t *tableState) setStaticChains(f Family, box *Box) {
	t.exists = len(t.sets) > 0
	want := map[string]Chain{}
	if t.exists {
		for _, c := range t.staticChains(f, box) {
			want[c.Name] = c
		}
	}
	for _, name := range staticChainNames {
		c, ok := want[name]
		switch {
		case ok:
			t.setChain(c)
		case t.chains[name] != nil && t.shared[name] == 0:
			t.dropChain(name)
		}
	}
}

// preparePicks keeps the pick chains that exist before a Service uses them.
func (t *tableState) preparePicks(f Family, box *Box) {
	for n := 2; n <= preparedPicks; n++ {
		name := pools[PoolCluster].vip.pick(n)
		switch is := t.chains[name] != nil; {
		case !is && t.has(setBackends):
			t.setChain(sharedChain(name, f, box))
		case is && !t.has(setBackends):
			t.dropChain(name)
		}
	}
}

// prepareDraws keeps the chains that depend on which maps of slots there are: `pick-1`, and,
// while there is a table, those that draw a slot of one, of all sizes (see preparedPicks).
func (t *tableState) prepareDraws() {
	for _, m := range allSlotMaps() {
		needed := t.shared[m.firstPick()] > 0 || m.backends == setBackends && t.has(setBackends)
		switch is := t.chains[m.firstPick()] != nil; {
		case needed:
			t.setChain(Chain{Name: m.firstPick(), Rules: t.firstPickRules(m)})
		case is:
			t.dropChain(m.firstPick())
		}
		if t.has(m.tables) == (t.chains[m.prefix+tableForms[0]] != nil) {
			continue // all forms are there, or none
		}
		for _, form := range tableForms {
			if t.has(m.tables) {
				t.setChain(Chain{Name: m.prefix + form, Rules: drawRules(form, m)})
			} else {
				t.dropChain(m.prefix + form)
			}
		}
	}
}

var staticChainNames = []string{
	chainRefuse, chainRefusePort, chainVIP, chainInside, chainByClient, chainNodePort, chainNPByClient,
	chainSourceNAT, chainNPSourceNAT, chainSameInterf, chainHairpin,
	chainPrerouting, chainOutput, chainPostrouting, chainStray, chainInvalid, chainRefused, chainAnswer, chainOwnAnswers, chainRefresh, chainInput,
	chainLimited, chainLimitedOutside, chainNPLimited, chainNPLimitedOutside, chainAdopt,
}
