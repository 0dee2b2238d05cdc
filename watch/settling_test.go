package watch

import (
	"slices"
	"testing"
	"time"
)

// Changes settle by their kinds, and by the time alone.
func TestSettlingReady(t *testing.T) {
	const settle, most = 100 * time.Millisecond, 2 * time.Second
	start := time.Unix(1_000, 0)
	at := func(d time.Duration) time.Time { return start.Add(d) }
	written := func(size int64, when time.Duration) fileState {
		return fileState{kind: regular, version: version{size: size, ctime: at(when).UnixNano()}}
	}
	type seen struct {
		path string
		fileState
		eventHint
		when time.Duration
	}
	for _, c := range []struct {
		name  string
		seen  []seen
		ready map[time.Duration]string // at a time: the paths, one letter each
	}{
		{"written once", []seen{{"a", written(1, 0), eventHint{}, 0}}, map[time.Duration]string{settle - 1: "", settle: "a"}},
		{"written long ago", []seen{{"a", written(1, -time.Minute), eventHint{}, 0}}, map[time.Duration]string{0: "a"}},
		{"written again", []seen{{"a", written(1, 0), eventHint{}, 0}, {"a", written(2, settle/2), eventHint{}, settle / 2}},
			map[time.Duration]string{settle: "", settle * 3 / 2: "a"}},
		{"renamed into place", []seen{{"a", written(1, 0), eventHint{created: true, moved: true}, 0}}, map[time.Duration]string{0: "a"}},
		{"as it was before", []seen{{"a", written(1, 0), eventHint{}, 0}, {"a", fileState{kind: gone}, eventHint{}, 1}}, map[time.Duration]string{most: ""}},
		{"two files", []seen{{"b", written(1, 0), eventHint{}, 0}, {"a", written(1, 0), eventHint{}, 0}}, map[time.Duration]string{settle: "ab"}},
	} {
		for when, want := range c.ready {
			st, s := newSettling(settle, most), &source{}
			for _, o := range c.seen {
				st.observe(s, o.path, o.fileState, o.eventHint, at(o.when))
			}
			got := ""
			for _, f := range st.ready(nil, nil, at(when)) {
				got += f.path
			}
			if got != want {
				t.Errorf("%s: after %v %q is ready, want %q", c.name, when, got, want)
			}
		}
	}
}

// What settled waits for a file that is vanishing, which may be the other half of the change, but
// not for long; and for nothing of a source that git is at work in.
func TestSettlingWaitsForOthers(t *testing.T) {
	const settle = 100 * time.Millisecond
	now := time.Unix(1_000, 0)
	st, s := newSettling(settle, time.Second), &source{}
	st.files["old"] = &file{path: "old", source: s, seen: fileState{kind: regular}}
	arrived := fileState{kind: regular, version: version{size: 1}}
	st.observe(s, "new", arrived, eventHint{created: true, moved: true}, now)
	vanish := func(now time.Time) { st.observe(s, "old", fileState{kind: gone}, eventHint{}, now) }
	vanish(now)
	paths := func(git map[*source]bool, after time.Duration) (all []string) {
		for _, f := range st.ready(git, nil, now.Add(after)) {
			all = append(all, f.path)
		}
		return all
	}
	if got := paths(nil, 0); got != nil {
		t.Errorf("%v did not wait for the file that vanishes", got)
	}
	if got := paths(map[*source]bool{s: true}, settle); got != nil {
		t.Errorf("%v did not wait for git", got)
	}
	if got, want := paths(nil, settle), []string{"new", "old"}; !slices.Equal(got, want) {
		t.Errorf("%v are ready together, want %v", got, want)
	}
}

// A file with events that were not looked at is not read in vain, unless there is no end of them.
func TestSettlingWaitsForEvents(t *testing.T) {
	const settle, most = 100 * time.Millisecond, 2 * time.Second
	now := time.Unix(1_000, 0)
	written := fileState{kind: regular, version: version{size: 1, ctime: now.UnixNano()}}
	st, s := newSettling(settle, most), &source{}
	st.observe(s, "a", written, eventHint{}, now)
	goesOn := map[string]eventHint{"a": {written: true}}
	for _, c := range []struct {
		events map[string]eventHint
		after  time.Duration
		ready  int
	}{{nil, settle, 1}, {goesOn, settle, 0}, {map[string]eventHint{"b": {}}, settle, 1}, {goesOn, most - 1, 0}, {goesOn, most, 1}} {
		if got := st.ready(nil, c.events, now.Add(c.after)); len(got) != c.ready {
			t.Errorf("after %v, with the events %v: %d are ready, want %d", c.after, c.events, len(got), c.ready)
		}
	}
	st.observe(s, "a", written, eventHint{created: true, moved: true}, now)
	if got := st.ready(nil, goesOn, now); len(got) != 1 {
		t.Errorf("a file that was renamed into place waits for events: %d are ready", len(got))
	}
}
