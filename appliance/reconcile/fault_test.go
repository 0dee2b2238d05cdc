package reconcile

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
)

// TestK06_nothingInUseIsDeleted: kernels before 6.2 refuse to delete a chain or a set in
// the transaction that removes the last reference to it.
func TestK06_nothingInUseIsDeleted(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	r := newRig(t)
	r.host()
	cleanups := 0
	r.kernel.Inject(func(b *nft.Batch) error {
		deletes, changes := false, false
		for _, op := range b.Ops {
			switch op := op.(type) {
			case nft.DeleteChain, nft.DeleteSet:
				deletes = true
			case nft.AddElements, nft.DeleteElements:
				changes = true
			case nft.SetRules: // without rules: of a chain that goes
				changes = changes || len(op.Rules) > 0
			}
		}
		if deletes && changes {
			t.Errorf("one transaction changes what refers to chains and deletes chains: %v", b.Ops)
		}
		if deletes {
			cleanups++
		}
		return nil
	})
	for range 300 {
		i := random.IntN(8)
		var endpoints []string
		for e := range random.IntN(6) {
			endpoints = append(endpoints, fmt.Sprintf("10.1.%d.%d", i, e))
		}
		text := web(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.1.%d", i), endpoints...)
		spec := []string{"spec: {", "spec: {type: NodePort, ", "spec: {sessionAffinity: ClientIP, ", "spec: {externalIPs: [198.51.100.1], "}[random.IntN(4)]
		r.write(fmt.Sprintf("%d.yaml", i), strings.Replace(text, "spec: {", spec, 1))
		r.step()
		if err := r.board.Ready(); err != nil || r.wait != 0 {
			t.Fatalf("ready: %v, retry in %v\n%s", err, r.wait, r.logged.String())
		}
	}
	if cleanups == 0 {
		t.Error("nothing was ever deleted: the changes have become too tame")
	}
}

// When everything fails at once, by chance, nothing is lost: what could not be committed
// and could not be read again is committed in the end.
func TestK12_commitsAndReadingsFailByChance(t *testing.T) {
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 1))
		r := newRig(t)
		r.host()
		unlucky := func(err error) error {
			if random.IntN(3) == 0 {
				return err
			}
			return nil
		}
		faults := []error{
			kernel.ErrStale, kernel.ErrOutcomeUnknown, errors.New("no buffer space"),
			&kernel.OpError{Text: "add element", Errno: syscall.ENOMEM}, &kernel.OpError{Text: "add element", Errno: syscall.EINVAL},
		}
		r.kernel.Inject(func(*nft.Batch) error { return unlucky(faults[random.IntN(len(faults))]) })
		readings := 0 // the test's own are not to fail
		r.kernel.InjectRead(func() error {
			if readings < 0 {
				return nil
			}
			return unlucky(kernel.ErrChanging)
		})
		want := map[int]string{}
		for range 40 {
			i := random.IntN(6)
			want[i] = fmt.Sprintf("10.1.%d.%d", random.IntN(256), random.IntN(256))
			r.write(fmt.Sprintf("%d.yaml", i), web(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.1.%d", i), want[i]))
			r.step()
			r.clock = r.clock.Add(time.Second)
		}
		r.kernel.Inject(nil)
		readings = -1
		for range 30 {
			if wait, needed := r.until(); needed {
				r.clock = r.clock.Add(wait)
				r.step()
			}
		}
		if s := r.board.Status(); !s.Synced || len(s.Problems) > 0 {
			t.Fatalf("seed %d: synced %v, problems %v", seed, s.Synced, s.Problems)
		}
		for i, ip := range want {
			r.want(fmt.Sprintf("10.96.1.%d . tcp . 80 . 0 : %s . 8080", i, ip))
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
