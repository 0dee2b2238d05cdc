package stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
)

// commit is one whose value does not become smaller by packing.
func commit(n int) (*Commit, string) {
	value := make([]byte, 600)
	for i, r := 0, rand.New(rand.NewPCG(uint64(n), 1)); i < len(value); i++ {
		value[i] = byte(r.Uint32())
	}
	return &Commit{Kind: Change, Mod: int64(n), Head: fmt.Appendf(nil, `{"id":"c%d"}`, n), Ops: []Op{
		{Key: fmt.Sprintf("object/Service/default/s%d", n), Value: value}, {Key: "object/Service/default/gone", Remove: true},
	}}, fmt.Sprintf("c%d", n)
}

// read decodes what a Reader gives until a commit has come, and returns their positions.
func read(t *testing.T, r *Reader, until int64) (mods []int64) {
	t.Helper()
	pr, pw := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for {
			piece, err := r.Next(ctx)
			if err != nil {
				pw.CloseWithError(err)
				return
			}
			if _, err := pw.Write(piece); err != nil {
				return
			}
		}
	}()
	defer pr.Close()
	for d := NewDecoder(pr); ; {
		c, err := d.Next()
		if err != nil {
			t.Fatalf("after %v: %v", mods, err)
		}
		want, _ := commit(int(c.Mod))
		want.Note = []byte{}
		if c.Note == nil {
			c.Note = []byte{}
		}
		if !reflect.DeepEqual(c, want) {
			t.Fatalf("commit %d came as %+v", c.Mod, c)
		}
		if mods = append(mods, c.Mod); c.Mod == until {
			return mods
		}
	}
}

// follows checks that positions are without a gap, and reach from at most one to another.
func follows(t *testing.T, mods []int64, from, until int64) {
	t.Helper()
	if mods[0] > from || mods[len(mods)-1] != until {
		t.Errorf("it has %d to %d, want %d to %d", mods[0], mods[len(mods)-1], from, until)
	}
	for i, m := range mods {
		if m != mods[0]+int64(i) {
			t.Fatalf("%d comes after %d", m, mods[i-1])
		}
	}
}

func TestLogGivesEachReaderAllThatFollows(t *testing.T) {
	l := NewLog(Position{0, "c0"}, DefaultLimit)
	const last = 1_000 // several members
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 1; n <= last; n++ {
			l.Add(commit(n))
		}
	})
	first, err := l.Reader(t.Context(), Position{0, "c0"})
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() { follows(t, read(t, first, last), 1, last) })
	wg.Wait()
	if len(l.members) < 3 {
		t.Fatalf("there are %d members: the test shows nothing", len(l.members))
	}
	for range 10 {
		at := rand.IntN(last)
		r, err := l.Reader(t.Context(), Position{int64(at), fmt.Sprintf("c%d", at)})
		if err != nil {
			t.Fatalf("from %d: %v", at, err)
		}
		follows(t, read(t, r, last), int64(at)+1, last)
	}
	if _, err := l.Reader(t.Context(), Position{5, "other"}); !errors.Is(err, ErrOther) {
		t.Errorf("another commit at a position gave %v", err)
	}
}

// A reader that does not read holds up nobody, and what is kept stays bounded; it is told that it is behind.
func Test604_a_leaf_that_does_not_read_costs_nothing(t *testing.T) {
	const limit = 3 * memberSize
	l := NewLog(Position{0, "c0"}, limit)
	slow, err := l.Reader(t.Context(), Position{0, "c0"})
	if err != nil {
		t.Fatal(err)
	}
	l.Add(commit(1))
	if _, err := slow.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	const last = 2_000
	for n := 2; n <= last; n++ {
		l.Add(commit(n))
	}
	l.Seal()
	l.mu.Lock()
	size, members := l.size, len(l.members)
	l.mu.Unlock()
	if size > limit+memberSize || members > limit/memberSize+1 {
		t.Errorf("it keeps %d bytes in %d members, the limit is %d", size, members, limit)
	}
	if _, err := slow.Next(t.Context()); !errors.Is(err, ErrBehind) {
		t.Errorf("the slow reader was told %v", err)
	}
	if _, err := l.Reader(t.Context(), Position{1, "c1"}); !errors.Is(err, ErrBefore) {
		t.Errorf("a position that is gone gave %v", err)
	}
	r, err := l.Reader(t.Context(), Position{last - 10, fmt.Sprintf("c%d", last-10)})
	if err != nil {
		t.Fatal(err)
	}
	follows(t, read(t, r, last), last-9, last)
	l.Close(errors.New("the end"))
	if _, err := r.Next(t.Context()); err == nil || err.Error() != "the end" {
		t.Errorf("a closed log gave %v", err)
	}
}

// What another log had before is put in front, if it ends where this one begins.
func TestLogPrepend(t *testing.T) {
	l := NewLog(Position{100, "c100"}, DefaultLimit)
	for n := 101; n <= 200; n++ {
		l.Add(commit(n))
	}
	older := func(from, to int) *Log {
		o := NewLog(Position{int64(from), fmt.Sprintf("c%d", from)}, DefaultLimit)
		for n := from + 1; n <= to; n++ {
			o.Add(commit(n))
		}
		o.Seal()
		return o
	}
	if err := errors.Join(l.Prepend(older(10, 99)), l.Prepend(older(10, 101))); !errors.Is(err, ErrBefore) {
		t.Errorf("logs that do not fit gave %v", err)
	}
	if err := l.Prepend(older(50, 100)); err != nil {
		t.Fatalf("a log that fits gave %v", err)
	}
	for _, at := range []int{50, 70, 100, 150, 199} {
		r, err := l.Reader(t.Context(), Position{int64(at), fmt.Sprintf("c%d", at)})
		if err != nil {
			t.Fatal(err)
		}
		follows(t, read(t, r, 200), int64(at)+1, 200)
	}
	if _, err := l.Reader(t.Context(), Position{49, "c49"}); !errors.Is(err, ErrBefore) {
		t.Errorf("a position before it gave %v", err)
	}
}

// Damage is an error, never another commit.
func TestDecoderFindsDamage(t *testing.T) {
	l := NewLog(Position{0, "c0"}, DefaultLimit)
	for n := 1; n <= 5; n++ {
		l.Add(commit(n))
	}
	l.Seal()
	whole := l.members[0].data
	decode := func(data []byte) (n int, err error) {
		for d := NewDecoder(bytes.NewReader(data)); ; n++ {
			if _, err := d.Next(); err != nil {
				return n, err
			}
		}
	}
	if n, err := decode(whole); n != 5 || !errors.Is(err, io.EOF) {
		t.Fatalf("%d commits, %v", n, err)
	}
	found := 0
	for i := 0; i < len(whole); i += 3 {
		bad := bytes.Clone(whole)
		bad[i] ^= 0x10
		if _, err := decode(bad); !errors.Is(err, io.EOF) {
			found++
		}
	}
	if 3*found < len(whole)*95/100 { // some bytes of the header of gzip mean nothing
		t.Errorf("%d of %d changed bytes were found", found, len(whole)/3)
	}
	for _, text := range []string{"", "c", "c\x01", "c\x01\x05abc", strings.Repeat("\xff", 20), "c\x01\x00\x00*"} {
		if _, err := parse([]byte(text)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q gave %v", text, err)
		}
	}
}
