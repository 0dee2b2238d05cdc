package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/pending"
)

// Test618 has boxes write and read Secrets while members of etcd are killed and the key of the fleet is changed: the history
// is one of registers.
func Test618_Secrets_while_members_of_etcd_are_killed(t *testing.T) {
	c := startEtcd(t, 3)
	c.init()
	files := []keyFile{newKeyFile(t, 1), newKeyFile(t, 1)}
	boxes := []*box{c.open(c.withKeys("a", files[0]), storeConfig), c.open(c.withKeys("b", files[1]), storeConfig)}
	const keys = 3
	for k := range keys {
		if err := boxes[0].putSecret(fmt.Sprint("k", k), ""); err != nil {
			t.Fatal(err)
		}
	}
	same(t, boxes[0], boxes[1])
	h := &history{began: time.Now()}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	read := func(ctx context.Context, client int, key string) {
		call := h.now()
		if b := boxes[client%len(boxes)]; b.Fresh(ctx) == nil {
			h.got(client, key, b.secret(key), call)
		}
	}
	for client := range 4 {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				key := fmt.Sprint("k", (client+n)%keys)
				if n%3 == 0 {
					read(ctx, client, key)
					continue
				}
				value := fmt.Sprintf("%d-%d", client, n)
				h.wrote(client, key, value, func() error { return boxes[client%len(boxes)].putSecret(key, value) })
			}
		})
	}
	progress := func(what string) {
		done := h.acknowledged()
		eventually(t, "writes go on after "+what, func() bool { return h.acknowledged() > done+20 })
	}
	progress("the start")
	leader := c.leader()
	c.kill(leader)
	progress("the leader was killed")
	c.start(leader)
	for _, text := range [][]byte{{1, 2}, {2, 1}} {
		for _, f := range files {
			f.has(text...)
		}
	}
	eventually(t, "all are sealed anew", func() bool { // boxes write all the time
		_, _, err := fleet.Reseal(t.Context(), c.withKeys("x", files[0]))
		return err == nil
	})
	progress("the key was changed")
	for i := range c.members {
		c.kill(i)
	}
	for i := range c.members {
		c.start(i)
	}
	progress("all were killed")
	stop()
	wg.Wait()
	for _, b := range boxes {
		eventually(t, "all boxes follow", func() bool { return b.engine.State().Kind == fleet.Following })
	}
	for k := range keys {
		for client := range boxes {
			read(t.Context(), 10+client, fmt.Sprint("k", k))
		}
	}
	same(t, boxes[0], boxes[1])
	t.Logf("%d operations, %d acknowledged writes, %d without an answer", len(h.ops), h.acknowledged(), h.unknown)
	h.check(t)
}

// The operations on a register that is on trial.
const (
	opRead    = "read"
	opSet     = "set"     // without a trial
	opBegin   = "begin"   // a trial, or join the one that is under way
	opTry     = "try"     // set, as a part of a trial
	opConfirm = "confirm" // the trial
	opBack    = "back"    // go back
)

// The outcomes of those that are not values.
const (
	didIt   = "done"
	noTrial = "no trial"
	unknown = "?"
)

// trialAccess is an operation; id names the trial of begin and try.
type trialAccess struct{ op, id, value string }

// trialRegister is a register that may be on trial. before is what goes back, once the trial has set it.
type trialRegister struct {
	value, trial, before string
	set                  bool
}

// trials is a model of one such register.
var trials = porcupine.Model{
	Init: func() any { return trialRegister{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(trialRegister), input.(trialAccess), output.(string)
		next, can := s, true
		switch in.op {
		case opRead:
			return out == s.value, s
		case opSet:
			next.value = in.value
		case opBegin:
			if s.trial == "" {
				next.trial, next.set = in.id, false
			}
			return out == unknown || out == next.trial, next
		case opTry:
			if can = s.trial == in.id; can && !s.set {
				next.before, next.set = s.value, true
			}
			next.value = in.value
		case opConfirm:
			can = s.trial != ""
			next.trial, next.set = "", false
		case opBack:
			if can = s.trial != ""; can && s.set {
				next.value = s.before
			}
			next.trial, next.set = "", false
		}
		switch {
		case !can:
			return out == noTrial || out == unknown, s
		default:
			return out == didIt || out == unknown, next
		}
	},
}

// trialHistory are operations on the register of Service k.
type trialHistory struct {
	history
	done map[string]int // by operation and outcome
}

// does notes what became of an operation.
func (h *trialHistory) does(client int, in trialAccess, do func() (string, error)) string {
	call := h.now()
	out, err := do()
	end := h.now()
	away := (*engine.AwayError)(nil)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case errors.As(err, &away):
		return "" // nothing was done
	case errors.Is(err, pending.ErrNoTimed), errors.Is(err, pending.ErrTimedOver):
		out = noTrial
	case err != nil:
		out, end = unknown, math.MaxInt64
	}
	h.done[in.op+" "+map[bool]string{true: out, false: ""}[out == noTrial || out == unknown]]++
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: end})
	return out
}

// step makes one operation by chance. trial is the one that the client knows of last.
func (h *trialHistory) step(ctx context.Context, client int, b *box, r *rand.Rand, n int, trial *string) {
	value := fmt.Sprintf("%d-%d", client, n)
	set := func(by store.Caller) (string, error) {
		svc := service("k")
		svc.Metadata.Annotations = map[string]string{registerAnnotation: value}
		results, err := b.Write(store.Write{Ref: serviceRef("k"), Object: svc, By: by})
		if err == nil {
			err = results[0].Err
		}
		return didIt, err
	}
	fresh := func(do func() (string, error)) func() (string, error) {
		return func() (string, error) {
			if err := b.Fresh(ctx); err != nil {
				return "", &engine.AwayError{Why: err.Error()}
			}
			return do()
		}
	}
	read := func() {
		h.does(client, trialAccess{op: opRead}, fresh(func() (string, error) { return b.value("k"), nil }))
	}
	switch r.IntN(8) {
	case 0, 1:
		read()
	case 2:
		h.does(client, trialAccess{opSet, "", value}, func() (string, error) { return set(store.Caller{User: "test"}) })
	case 3:
		id := "t" + value
		out := h.does(client, trialAccess{op: opBegin, id: id}, func() (string, error) {
			begun, err := b.BeginTimed(id, "test", false, time.Hour, deadline.Now())
			return begun.ID, err
		})
		if out != "" && out != unknown {
			*trial = out
		}
	case 4, 5:
		if head, is := b.PendingHead(pending.Timed); is && head.Pending() {
			*trial = head.ID
		}
		if *trial != "" {
			h.does(client, trialAccess{opTry, *trial, value}, fresh(func() (string, error) { return set(store.Caller{User: "test", Trial: *trial}) }))
		}
	case 6:
		h.does(client, trialAccess{op: opConfirm}, fresh(func() (string, error) { _, err := b.Confirm(""); return didIt, err }))
	case 7:
		h.does(client, trialAccess{op: opBack}, fresh(func() (string, error) { _, err := b.GoBack(manifest.Files{}); return didIt, err }))
		read() // before others change it
	}
}

// Test619 has boxes begin, confirm and take back trials of one object while the member of etcd that leads is killed: the
// history is one of a register that may be on trial, and one that lacks a going back is not.
func Test619_trials_while_members_of_etcd_are_killed(t *testing.T) {
	c := startEtcd(t, 3)
	c.init()
	boxes := []*box{c.join("a"), c.join("b"), c.join("c")}
	if err := boxes[0].create("k"); err != nil {
		t.Fatal(err)
	}
	for _, b := range boxes {
		same(t, boxes[0], b)
	}
	h := &trialHistory{history: history{began: time.Now()}, done: map[string]int{}}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for client, b := range boxes {
		wg.Go(func() {
			r, trial := rand.New(rand.NewPCG(uint64(client), 5)), ""
			for n := 0; ctx.Err() == nil; n++ {
				h.step(ctx, client, b, r, n, &trial)
			}
		})
	}
	back := func() int {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.done[opBack+" "]
	}
	progress := func(what string) {
		done := back()
		eventually(t, "trials go on after "+what, func() bool { return back() > done+5 })
	}
	progress("the start")
	leader := c.leader()
	c.kill(leader)
	progress("the leader was killed")
	c.start(leader)
	progress("it was started")
	stop()
	wg.Wait()
	for client, b := range boxes {
		eventually(t, "all boxes follow", func() bool { return b.engine.State().Kind == fleet.Following })
		h.does(10+client, trialAccess{op: opRead}, func() (string, error) {
			err := b.Fresh(t.Context())
			return b.value("k"), err
		})
	}
	t.Logf("%d operations: %v", len(h.ops), h.done)
	if got := porcupine.CheckOperationsTimeout(trials, h.ops, time.Minute); got != porcupine.Ok {
		t.Errorf("the history is %s", got)
	}
	// Each going back is seen by the reads, and by what may be done to a trial.
	for i, op := range h.ops {
		if op.Input.(trialAccess).op != opBack || op.Output != didIt {
			continue
		}
		lost := append(append([]porcupine.Operation{}, h.ops[:i]...), h.ops[i+1:]...)
		if porcupine.CheckOperationsTimeout(trials, lost, time.Minute) == porcupine.Illegal {
			return
		}
	}
	t.Error("a history in which a trial did not go back that did is as good: the history shows nothing")
}
