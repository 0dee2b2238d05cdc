package kernel

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// readAttempts bounds how often a reading is restarted because another program committed meanwhile. A reading takes a fraction of a second, so only a
// program that commits continuously exceeds it.
const readAttempts = 10

// Read returns our tables in the kernel, and the generation of the ruleset. A family without our table is not in the result.
//
// Chains have Marks instead of Rules. Elements of dynamic sets are left out. A set that this product could not have made has a name and no Key. A
// base chain that it could not have made has a Hook that package nft does not define. So such sets and chains never equal wanted ones. Every base
// chain of a dormant table has that Hook too, because packets do not pass through it. Anonymous sets and chains belong to rules and are left out.
func (c *Conn) Read() (nft.Ruleset, uint32, error) {
	return c.read(reading{count: !c.counting.tally.Started()})
}

// ReadFrontends reads only the parts of our tables that nft.CountFrontends and nft.Adopts need, and the flowtables.
func (c *Conn) ReadFrontends() (nft.Ruleset, error) {
	have, _, err := c.read(reading{only: nft.FrontendSets()})
	return have, err
}

func (c *Conn) read(r reading) (nft.Ruleset, uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var last error
	for range readAttempts {
		s, err := c.ensureSocket()
		if err != nil {
			return nil, 0, err
		}
		r.socket, r.counts = s, nil
		ruleset, generation, err := r.consistent()
		if err == nil {
			if r.count {
				c.counting.tally.Start(r.counts)
			}
			return ruleset, generation, nil
		}
		if isErrno(err, unix.EPERM) {
			return nil, 0, ErrPermission
		}
		if passing := isErrno(err, unix.ENOBUFS, unix.ENOMEM, unix.EINTR, unix.EAGAIN); !errors.Is(err, ErrChanging) {
			c.closeSocket()
			if !passing {
				return nil, 0, fmt.Errorf("read nf_tables: %w", err)
			}
		}
		last = err
	}
	return nil, 0, fmt.Errorf("read nf_tables: %w", last)
}

// reading is the state of one attempt to read our tables.
type reading struct {
	*socket
	only   []string    // names of the only sets to read; nil means the whole tables
	count  bool        // collect counts
	counts []nft.Count // nonzero counts of elements and named counters
}

// consistent reads the ruleset, and the generation before and after it. It returns ErrChanging if the generations differ, because dumps may then be
// incomplete or repeat elements without an error.
func (r *reading) consistent() (nft.Ruleset, uint32, error) {
	s := r.socket
	before, err := readGeneration(s)
	if err != nil {
		return nil, 0, err
	}
	ruleset := nft.Ruleset{}
	for _, f := range nft.Families {
		t, err := r.table(f)
		if err != nil {
			// What a dump misses because of another's commit may show as an error.
			if after, again := readGeneration(s); again == nil && after != before {
				err = ErrChanging
			}
			return nil, 0, err
		}
		if t != nil {
			ruleset[f] = t
		}
	}
	after, err := readGeneration(s)
	if err != nil {
		return nil, 0, err
	}
	if after != before {
		return nil, 0, ErrChanging
	}
	return ruleset, after, nil
}

// table reads the table of one family; nil if there is none.
func (r *reading) table(f nft.Family) (*nft.Table, error) {
	s := r.socket
	flags, exists, err := tableFlags(s, nft.TableName, f)
	if err != nil || !exists {
		return nil, err
	}
	t := &nft.Table{Sets: map[string]*nft.SetContent{}, Chains: map[string]*nft.Chain{}, Timeouts: map[string]nft.Timeout{}, Flowtables: map[string]nft.Flowtable{}}
	if err := readFlowtables(s, f, t.Flowtables); err != nil {
		return nil, fmt.Errorf("flowtables of table %s: %w", f, err)
	}
	if r.only != nil {
		return t, r.sets(f, t)
	}
	if err := dumpObjects(s, f, objectTimeout, func(name string, data []byte) { t.Timeouts[name] = decodeTimeout(data) }); err != nil {
		return nil, fmt.Errorf("timeouts of table %s: %w", f, err)
	}
	if err := readChains(s, f, t.Chains); err != nil {
		return nil, fmt.Errorf("chains of table %s: %w", f, err)
	}
	err = dumpObjects(s, f, unix.NFT_OBJECT_COUNTER, func(name string, data []byte) {
		t.Counters = append(t.Counters, name)
		if packets := packetsOf(data); r.count && packets > 0 {
			r.counts = append(r.counts, nft.Count{Family: f, Key: name, Packets: packets})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("counters of table %s: %w", f, err)
	}
	slices.Sort(t.Counters)
	if err := readMarks(s, f, t.Chains); err != nil {
		return nil, fmt.Errorf("rules of table %s: %w", f, err)
	}
	if err := r.sets(f, t); err != nil {
		return nil, fmt.Errorf("sets of table %s: %w", f, err)
	}
	if flags&unix.NFT_TABLE_F_DORMANT != 0 {
		for hook := range hookNumbers { // a dormant table filters nothing: each of its chains has a hook that is not the wanted one
			t.Chains[hook.String()] = &nft.Chain{Name: hook.String(), Hook: foreignHook}
		}
	}
	return t, nil
}

// tableFlags returns the flags of a table (NFT_TABLE_F_*), and whether it exists.
func tableFlags(s *socket, name string, f nft.Family) (flags uint32, exists bool, err error) {
	err = s.request(unix.NFT_MSG_GETTABLE, 0, protocols[f].family,
		func(w *writer) { w.Text(unix.NFTA_TABLE_NAME, name) },
		func(m message) {
			exists = true
			flags = uint32(nfnetlink.Number(m.Attribute(unix.NFTA_TABLE_FLAGS)))
		})
	if isErrno(err, unix.ENOENT) {
		err = nil
	}
	return flags, exists, err
}

// sets reads all sets. It reads sets of slots last, because the other sets determine which slots they should have.
func (r *reading) sets(f nft.Family, t *nft.Table) error {
	sets, counts := t.Sets, map[string]int{}
	err := r.dump(unix.NFT_MSG_GETSET, protocols[f].family,
		func(w *writer) { w.Text(unix.NFTA_SET_TABLE, nft.TableName) },
		func(m message) {
			if d := decodeSet(&m, f); !d.anonymous && (r.only == nil || slices.Contains(r.only, d.Name)) {
				sets[d.Name] = &nft.SetContent{Set: d.Set, Elements: nft.Elements{}}
				counts[d.Name] = d.count
			}
		})
	if err != nil {
		return err
	}
	for _, slots := range []bool{false, true} {
		for set := range maps.Values(sets) {
			if set.Dynamic || set.Key == nil || nft.IsSlotMap(set.Name) != slots {
				continue
			}
			count := counts[set.Name]
			if slots && count >= byKeyFrom {
				if complete, err := readSlots(r.socket, f, t, set, count); err == nil && complete {
					continue
				}
				clear(set.Elements) // a dump finds the difference, or the error
			}
			if err := r.content(f, set, count); err != nil {
				return fmt.Errorf("elements of %s: %w", set.Name, err)
			}
		}
	}
	return nil
}

// content reads the elements of a set that is not dynamic. count is their number as reported by the kernel.
func (r *reading) content(f nft.Family, set *nft.SetContent, count int) error {
	var bounds []element
	foreign := false
	err := readAll(r.socket, nft.TableName, f, &set.Set, count, func(e element) bool {
		key := swapHostOrder(&set.Set, f, e.key) + swapHostOrder(&set.Set, f, e.keyEnd)
		_, known := set.Elements[key]
		if r.count && set.Counted {
			r.counts = appendCount(r.counts, f, &set.Set, e)
		}
		switch {
		case !e.ours:
			foreign = true
		case set.Interval && len(set.Key) == 1:
			bounds = append(bounds, e)
		default:
			set.Elements[key] = e.data
		}
		return !known
	})
	if foreign {
		*set = nft.SetContent{Set: nft.Set{Name: set.Name}, Elements: nft.Elements{}}
		return nil
	}
	joinIntervals(set.Elements, &set.Set, f, bounds)
	return err
}

// elementAttempts bounds how often a set is read until all of its elements were seen.
const elementAttempts = 20

// readAll reads a set until every element was seen; each reports whether an element is new.
//
// A set without a fixed size is a hash table. The kernel resizes it in the background at any time after many elements were added or removed, and a
// dump during that time misses some elements and repeats others without an error. Since 6.16 the kernel reports the number of elements: readAll reads
// until it has seen as many, or until several dumps in a row contain no new element. On older kernels, and for sets with timeouts, where the number
// includes expired elements, it stops after the first dump without a new element.
//
// ErrChanging means that dumps kept containing new elements.
func readAll(s *socket, table string, f nft.Family, set *nft.Set, count int, each func(element) (new bool)) error {
	resizes := !set.Interval && (set.Size == 0 || set.Timeout != 0 || set.Dynamic)
	counted := count >= 0 && set.Timeout == 0 && !set.Dynamic
	enough := 1 // readings in a row that bring nothing new
	if counted {
		enough = 5
	}
	total, quiet := 0, 0
	for range elementAttempts {
		before, foreign := total, false
		err := dumpElements(s, table, f, decoderOf(set, f), func(e element) {
			if each(e) {
				total++
			}
			foreign = foreign || !e.ours
		})
		switch {
		case err != nil:
			return err
		case !resizes, foreign:
			return nil
		case counted && total == count:
			return nil
		case total > before:
			quiet = 0
			continue
		}
		if quiet++; quiet == enough {
			return nil
		}
	}
	return ErrChanging
}

func dumpElements(s *socket, table string, f nft.Family, d elementDecoder, each func(element)) error {
	return s.dump(unix.NFT_MSG_GETSETELEM, protocols[f].family,
		func(w *writer) {
			w.Text(unix.NFTA_SET_ELEM_LIST_TABLE, table)
			w.Text(unix.NFTA_SET_ELEM_LIST_SET, d.set.Name)
		},
		func(m message) { d.elements(&m, each) })
}

func readChains(s *socket, f nft.Family, chains map[string]*nft.Chain) error {
	return s.dump(unix.NFT_MSG_GETCHAIN, protocols[f].family, nil, func(m message) {
		if c := decodeChain(&m); c.table == nft.TableName && !c.anonymous {
			chains[c.name] = new(c.chain())
		}
	})
}

func readMarks(s *socket, f nft.Family, chains map[string]*nft.Chain) error {
	return s.dump(unix.NFT_MSG_GETRULE, protocols[f].family,
		func(w *writer) { w.Text(unix.NFTA_RULE_TABLE, nft.TableName) },
		func(m message) {
			var table, chain string
			var mark uint64
			for kind, value := range m.Attributes() {
				switch kind {
				case unix.NFTA_RULE_TABLE:
					table = nfnetlink.Text(value)
				case unix.NFTA_RULE_CHAIN:
					chain = nfnetlink.Text(value)
				case unix.NFTA_RULE_USERDATA:
					mark = markOf(value)
				}
			}
			if c := chains[chain]; c != nil && table == nft.TableName {
				c.Marks = append(c.Marks, mark)
			}
		})
}
