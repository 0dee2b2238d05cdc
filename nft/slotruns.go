package nft

import (
	"slices"
	"strconv"
	"strings"
)

// A SlotRun is slots of one frontend, from 0 on, that a map of slots should have. Who reads
// a large map from the kernel asks for them by their keys.
type SlotRun struct {
	Frontend string // the key, without the slot
	Slots    uint32
	// Spare are more slots, behind these: they are there if one of these is not.
	Spare uint32
}

// Key is the key of one of the slots.
func (r *SlotRun) Key(slot uint32) string {
	return string(Key(r.Frontend).Slot(slot))
}

// IsSlotMap reports whether a map holds slots of frontends.
func IsSlotMap(name string) bool { return secondary[name] }

// SlotRuns returns the slots that a map of slots should have, by the chains that the verdicts of a
// table lead to. All other sets of the table, and its chains, have to be known. It is a guess:
// another program may have changed the table.
func (t *Table) SlotRuns(f Family, set string) []SlotRun {
	r := recovery{family: f, table: t}
	var runs []SlotRun
	for i, maps := range allSlotMaps() {
		if maps.backends != set && maps.tables != set {
			continue
		}
		pool, dispatch := Pool(i/2), &vipMaps
		if i%2 == 1 {
			dispatch = &nodePortMaps
		}
		found := map[string]SlotRun{}
		for _, name := range []string{dispatch.all, dispatch.inside, dispatch.outside, dispatch.limits.inside.set, dispatch.limits.outside.set} {
			for key, verdict := range t.elements(name) {
				if run, is := r.slotRun(verdict, maps, pool, set); is {
					run.Frontend = key
					found[key] = run
				}
			}
		}
		for _, key := range sortedKeys(found) {
			runs = append(runs, found[key])
		}
	}
	return runs
}

// slotRun derives from a verdict which slots a map should have.
func (r *recovery) slotRun(verdict string, maps *slotMaps, pool Pool, set string) (SlotRun, bool) {
	chain, _ := strings.CutPrefix(verdict, "goto ")
	name, id, own := strings.Cut(chain, "/")
	if own && strings.HasSuffix(name, "recall"+pools[pool].qualifier) {
		members := compiledPort{ServicePort: &ServicePort{ID: id}}
		n := len(r.table.elements(members.members(pool).Name))
		if set == maps.backends {
			return SlotRun{Slots: uint32(n)}, n > 0
		}
	}
	if n, is := strings.CutPrefix(chain, maps.prefix+chainPick); is && set == maps.backends {
		slots, err := strconv.ParseUint(n, 10, 32)
		return SlotRun{Slots: uint32(slots)}, err == nil
	}
	if set == maps.backends {
		return SlotRun{}, false
	}
	at := slices.IndexFunc(tableForms, func(form string) bool { return r.leadsTo(verdict, maps.prefix+form) })
	if at < 0 {
		return SlotRun{}, false
	}
	kind, size := splitForm(tableForms[at])
	run := SlotRun{Slots: size}
	if kind == chainWeigh {
		run.Spare = size
	}
	return run, true
}
