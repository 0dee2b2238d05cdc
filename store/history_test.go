package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/object"
)

func configMap(name, value string) *object.ConfigMap {
	o := &object.ConfigMap{TypeMeta: object.TypeMeta{Kind: object.KindConfigMap, APIVersion: object.APIVersionCore}}
	o.Metadata.Namespace, o.Metadata.Name, o.Data = "default", name, map[string]string{"value": value}
	return o
}

// told is the events after a revision, in short.
func (b *box) told(after uint64) string {
	b.t.Helper()
	events, err := b.s.Events(after, 0)
	if err != nil {
		return err.Error()
	}
	var lines []string
	value := func(o object.Object) string {
		if o == nil {
			return "-"
		}
		if o, ok := o.(*object.ConfigMap); ok {
			return o.Data["value"]
		}
		return o.GetMeta().ResourceVersion
	}
	for _, e := range events {
		lines = append(lines, fmt.Sprintf("%s %s>%s %s %s", e.Ref.Name, value(e.Old), value(e.New), e.Owner, e.By.Verb))
	}
	return strings.Join(lines, "; ")
}

func TestEventsTellWhatHappened(t *testing.T) {
	b := newBox(t)
	start := b.s.Revision()
	by := func(w Write, verb string) Write {
		w.By = Caller{User: "root", Manager: "m", Agent: "a/1", Verb: verb}
		return w
	}
	b.must(by(write(configMap("a", "1")), "create"))
	b.apply("f.yaml", yamlOf("web {}"))
	file := b.s.Revision()
	b.must(by(write(configMap("a", "2")), "update"))
	b.must(by(write(configMap("a", "2")), "update"))
	b.must(by(write(configMap("b", "1")), "create"))
	b.must(by(Write{Ref: object.RefOf(configMap("a", "")), Delete: true}, "delete"))
	b.must(by(write(configMap("a", "3")), "apply"))
	want := fmt.Sprintf("a ->1 the API create; web ->%d f.yaml ; a 1>2 the API update; b ->1 the API create; a 2>- the API delete; a ->3 the API apply", file)
	for range 2 {
		if got := b.told(start); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		events, err := b.s.Events(start, 2)
		if err != nil || len(events) != 2 || !events[0].At.Equal(b.now) || events[0].By != (Caller{User: "root", Manager: "m", Agent: "a/1", Verb: "create"}) {
			t.Errorf("%+v, %v", events, err)
		}
		if got := b.told(b.s.Revision()); got != "" {
			t.Errorf("after the last one: %s", got)
		}
		for _, bad := range []uint64{0, start - 1, b.s.Revision() + 1} {
			if _, err := b.s.Events(bad, 0); !errors.Is(err, ErrExpired) {
				t.Errorf("after %d: %v", bad, err)
			}
			if bad != 0 {
				if _, _, err := b.s.List(object.KindConfigMap, "", bad); !errors.Is(err, ErrExpired) {
					t.Errorf("list at %d: %v", bad, err)
				}
			}
		}
		b.restart()
		b.sync()
	}
}

// The versions of what no watcher asks for are left out, the changes are not.
func TestEventsAbout(t *testing.T) {
	b := newBox(t)
	start := b.s.Revision()
	for _, value := range []string{"1", "2"} {
		b.must(write(configMap("a", value)))
		b.must(write(configMap("b", value)))
	}
	for range 2 {
		events, err := b.s.EventsAbout(start, 0, func(ref object.Ref) bool { return ref.Name == "b" })
		if err != nil || len(events) != 4 || events[2].Old != nil || events[2].New != nil || events[3].Old == nil || events[3].New == nil {
			t.Errorf("%+v, %v", events, err)
		}
		if events[1].New != events[3].Old {
			t.Error("one version is read twice")
		}
		b.restart()
	}
}

func TestPublished(t *testing.T) {
	b := newBox(t)
	published := b.s.Published()
	b.must(Write{Ref: ref("web"), Object: refine(document(t, "web {}")), DryRun: true})
	b.sync()
	select {
	case <-published:
		t.Error("nothing has changed")
	default:
	}
	b.must(write(configMap("a", "1")))
	select {
	case <-published:
	default:
		t.Error("nobody was told")
	}
}

// Readers of Leases are not woken by other changes.
func TestPublishedEphemeral(t *testing.T) {
	b := newBox(t)
	published := b.s.PublishedEphemeral()
	b.must(write(configMap("a", "1")))
	select {
	case <-published:
		t.Error("a ConfigMap wakes readers of Leases")
	default:
	}
	b.must(write(made(t, object.KindLease, "default", "a")))
	select {
	case <-published:
	default:
		t.Error("a Lease does not wake them")
	}
}

// The loop need not look when clients talk to each other.
func TestChatterWakesNobody(t *testing.T) {
	b := newBox(t)
	b.must(write(made(t, object.KindLease, "default", "a")))
	select {
	case <-b.s.Changed():
		t.Error("a Lease wakes the loop")
	default:
	}
	b.must(write(made(t, object.KindNamespace, "", "a")))
	select {
	case <-b.s.Changed():
	default:
		t.Error("a Namespace does not wake the loop")
	}
}

func TestHistoryIsBounded(t *testing.T) {
	b := newBox(t)
	long := strings.Repeat("x", 1000)
	first := b.s.Revision()
	for round := range 30 {
		writes := make([]Write, 500)
		for i := range writes {
			writes[i] = write(configMap(fmt.Sprint("a", i), fmt.Sprint(round, long)))
		}
		if _, err := b.s.Write(writes...); err != nil {
			t.Fatal(err)
		}
		h := b.s.feed.journal
		stored, err := b.engine.Load(journalPrefix)
		if err != nil {
			t.Fatal(err)
		}
		bytes, recent := 0, 0
		for i, pair := range stored {
			if bytes += len(pair.Value); pair.Key != journal.Key(h.Entries()[i].Revision) {
				t.Fatalf("entry %d is %s", i, pair.Key)
			}
			if h.Entries()[i].Before().IsKnown() {
				recent++
			}
		}
		if len(stored) != len(h.Entries()) || bytes != h.Size() || len(stored) > journal.DefaultBounds().Entries || bytes > journal.DefaultBounds().Bytes || recent > journal.DefaultBounds().Recent {
			t.Fatalf("round %d: %d entries stored, %d known, of %d bytes, %d recent", round, len(stored), len(h.Entries()), bytes, recent)
		}
	}
	h := b.s.feed.journal
	if _, err := b.s.Events(first, 0); !errors.Is(err, ErrExpired) || h.Since() == first || len(h.Entries()) < 4000 {
		t.Errorf("%d entries since %d: %v", len(h.Entries()), h.Since(), err)
	}
	events, err := b.s.Events(h.Since(), 0)
	if err != nil || len(events) != len(h.Entries()) {
		t.Errorf("%d events, %v", len(events), err)
	}
	since := h.Since()
	b.restart()
	if b.s.feed.journal.Since() != since || len(b.s.feed.journal.Entries()) != len(events) {
		t.Errorf("after a restart %d entries since %d, before %d since %d", len(b.s.feed.journal.Entries()), b.s.feed.journal.Since(), len(events), since)
	}
}

// More changes at once than there is room for end the history; one less does not.
func TestLargeChangeEndsTheHistory(t *testing.T) {
	for _, n := range []int{journal.DefaultBounds().Entries, journal.DefaultBounds().Entries + 1} {
		b := newBox(t)
		b.must(write(configMap("before", "1")))
		before := b.s.Revision()
		writes := make([]Write, n)
		for i := range writes {
			writes[i] = write(configMap(fmt.Sprint("a", i), "1"))
		}
		if _, err := b.s.Write(writes...); err != nil {
			t.Fatal(err)
		}
		stored, err := b.engine.Load(journalPrefix)
		if err != nil {
			t.Fatal(err)
		}
		after := b.s.Revision()
		_, err = b.s.Events(before, 0)
		if n <= journal.DefaultBounds().Entries {
			if err != nil || len(stored) != n {
				t.Errorf("%d changes: %v, %d entries", n, err, len(stored))
			}
			continue
		}
		if !errors.Is(err, ErrExpired) || len(stored) != 0 {
			t.Errorf("%d changes: %v, %d entries", n, err, len(stored))
		}
		b.must(write(configMap("after", "1")))
		if got := b.told(after); got != "after ->1 the API " {
			t.Errorf("afterwards: %s", got)
		}
		b.restart()
		if got := b.told(after); got != "after ->1 the API " {
			t.Errorf("after a restart: %s", got)
		}
	}
}

// What this program did not write in one go is no history.
func TestStrangeJournals(t *testing.T) {
	for name, spoil := range map[string]func(pairs map[string]engine.Pair){
		"none": func(pairs map[string]engine.Pair) {
			for key := range pairs {
				if strings.HasPrefix(key, journalPrefix) {
					delete(pairs, key)
				}
			}
		},
		"a version without a journal has written": func(pairs map[string]engine.Pair) {
			head := pairs[headKey]
			head.Revision += 5
			pairs[headKey] = head
		},
		"an entry that cannot be read": func(pairs map[string]engine.Pair) {
			pairs[journalPrefix+"x"] = engine.Pair{Key: journalPrefix + "x", Value: []byte("x")}
		},
		"the last entry is of another form": func(pairs map[string]engine.Pair) {
			key := journal.Key(pairs[headKey].Revision)
			pairs[key] = engine.Pair{Key: key, Value: []byte(`{"kind":"Gadget","name":"x"}` + "\n")}
		},
	} {
		b := newBox(t)
		start := b.s.Revision()
		b.must(write(configMap("a", "1")))
		b.must(write(configMap("a", "2")))
		b.engine.Tamper(spoil)
		b.restart()
		now := b.s.Revision()
		if got := b.told(start); !strings.Contains(got, ErrExpired.Error()) {
			t.Errorf("%s: %s", name, got)
		}
		b.must(write(configMap("a", "3")))
		for range 2 {
			if got := b.told(now); got != "a 2>3 the API " {
				t.Errorf("%s: %s", name, got)
			}
			b.restart()
		}
		if stored, _ := b.engine.Load(journalPrefix); len(stored) != 1 {
			t.Errorf("%s: %d entries are stored", name, len(stored))
		}
	}
	// A gap in the middle: what comes after it is history.
	b := newBox(t)
	var revisions []uint64
	for i := range 4 {
		b.must(write(configMap("a", fmt.Sprint(i))))
		revisions = append(revisions, b.s.Revision())
	}
	b.engine.Tamper(func(pairs map[string]engine.Pair) { delete(pairs, journal.Key(revisions[1])) })
	b.restart()
	if got := b.told(revisions[1]); got != "a 1>2 the API ; a 2>3 the API " {
		t.Errorf("behind a gap: %s", got)
	}
	if got := b.told(revisions[0]); !strings.Contains(got, ErrExpired.Error()) {
		t.Errorf("before a gap: %s", got)
	}
}

// An old version that cannot be read any more is an error for who asks for it, no more.
func TestUnreadableVersion(t *testing.T) {
	b := newBox(t)
	start := b.s.Revision()
	b.must(write(configMap("a", "1")))
	b.must(write(configMap("a", "2")))
	key := journal.Key(b.s.Revision())
	b.engine.Tamper(func(pairs map[string]engine.Pair) {
		pair := pairs[key]
		pair.Value = []byte(strings.Replace(string(pair.Value), `"value":"1"`, `"value":[1]`, 1))
		pairs[key] = pair
	})
	b.restart()
	if got := b.told(start); !strings.Contains(got, "read the journal of ConfigMap default/a") {
		t.Errorf("got %s", got)
	}
	if _, _, err := b.s.List(object.KindConfigMap, "", start+1); err == nil {
		t.Error("a list of it")
	}
	if list, _, err := b.s.List(object.KindConfigMap, "", 0); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}
