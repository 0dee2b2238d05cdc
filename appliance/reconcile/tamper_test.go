package reconcile

import (
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
)

func (r *rig) hasProblem(reason string) bool {
	for _, p := range r.board.Status().Problems {
		if p.Reason == reason {
			return true
		}
	}
	return false
}

// meddle empties the tables as another program would, which is noticed, and takes a step.
func (r *rig) meddle(pid uint32) (healed bool) {
	r.kernel.Tamper(func(rs nft.Ruleset) { clear(rs) })
	r.onForeignChange(kernel.Change{Ours: true, PID: pid, Comm: "firewall"})
	r.step()
	healed = strings.Contains(r.text(), "10.96.0.10 . tcp . 80")
	s := r.board.Status()
	if s.Synced != healed {
		r.t.Errorf("synced: %v (%s), and the rules are in force: %v", s.Synced, s.Reason, healed)
	}
	if !healed && (!strings.Contains(s.Reason, "not in force: firewall (process ") || !s.Ready) {
		r.t.Errorf("ready: %v, reason: %q", s.Ready, s.Reason)
	}
	return healed
}

func TestK02_repeatedInterferenceIsNotFought(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	for i := range fightHeals {
		if !r.meddle(uint32(i)) || r.hasProblem(reasonInterference) {
			t.Fatalf("change %d: not put right at once, or called a fight", i)
		}
		r.clock = r.clock.Add(time.Second)
	}
	if r.held != fightHeals {
		t.Errorf("the sentinel was held %d times, want with each heal", r.held)
	}
	if !r.meddle(100) || !r.hasProblem(reasonInterference) {
		t.Error("the sixth heal within ten seconds is no fight")
	}
	warnings := strings.Count(r.logged.String(), "our tables were changed")

	// From now on the heals are further and further apart, whatever the other one does.
	heals := r.kernel.Commits()
	start := r.clock
	var pauses []time.Duration
	last := r.clock
	for r.clock.Sub(start) < 5*time.Minute {
		r.clock = r.clock.Add(100 * time.Millisecond)
		if r.meddle(101) {
			pauses = append(pauses, r.clock.Sub(last))
			last = r.clock
		}
	}
	if n := r.kernel.Commits() - heals; n != len(pauses) || n > 14 {
		t.Errorf("%d heals in five minutes", n)
	}
	if pauses[0] != pauseFirst || pauses[len(pauses)-1] != pauseLast {
		t.Errorf("the pauses are %v", pauses)
	}
	log := r.logged.String()
	if n := strings.Count(log, "our tables were changed"); n != warnings {
		t.Errorf("%d more warnings during the fight", n-warnings)
	}
	if n := strings.Count(log, reasonInterference); n != 1 || !strings.Contains(log, "firewall (process 100)") {
		t.Errorf("the fight is logged %d times, or without the culprit:\n%s", n, log)
	}

	// It is over a minute after the last change, with the tables as they should be.
	for range 10 {
		wait, due := r.until()
		if !due {
			break
		}
		r.clock = r.clock.Add(wait)
		r.step()
	}
	if s := r.board.Status(); r.hasProblem(reasonInterference) || r.tamper.pause != 0 || !s.Synced || s.Reason != "" {
		t.Errorf("the fight is never over: %+v", s)
	}
	r.want("10.96.0.10 . tcp . 80 . 0 : 10.1.0.1 . 8080")
	if !r.meddle(102) {
		t.Error("after a fight a change is not put right at once")
	}
}

// Changes of the input go on during a fight.
func TestK02_changesGoOnDuringAFight(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	for i := range uint32(fightHeals + 3) {
		r.meddle(i)
	}
	if r.meddle(50) {
		t.Fatal("this is no fight")
	}
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.2"))
	r.step()
	r.want("10.96.0.10 . tcp . 80 . 0 : 10.1.0.2 . 8080")
}

// Changes spread over time are no fight.
func TestK02_rareChangesAreNoFight(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	for i := range uint32(50) {
		r.clock = r.clock.Add(fightWindow / fightHeals)
		if !r.meddle(i) || r.hasProblem(reasonInterference) {
			t.Fatalf("change %d is not put right at once", i)
		}
	}
}

// A fight that is over is put right a second after its last change; who goes on a little later gets no more than one
// such heal between two others.
func TestQuietFightIsHealedEarly(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	for range 60 { // for 6 s
		r.meddle(7)
		r.clock = r.clock.Add(100 * time.Millisecond)
	}
	r.meddle(7)
	if strings.Contains(r.text(), "10.96.0.10 . tcp . 80") || r.tamper.next.Sub(r.clock) <= fightQuiet {
		t.Fatalf("the fight is healed in %v anyway", r.tamper.next.Sub(r.clock))
	}
	wait, needed := r.until()
	if !needed || wait != fightQuiet {
		t.Errorf("the next step comes in %v, %t", wait, needed)
	}
	r.clock = r.clock.Add(wait)
	r.step()
	r.want("10.96.0.10 . tcp . 80")
	if s := r.board.Status(); !s.Synced {
		t.Errorf("not synced: %s", s.Reason)
	}
	// One change every two seconds.
	heals, began := r.kernel.Commits(), r.clock
	for r.clock.Sub(began) < 5*time.Minute {
		r.meddle(7)
		for range 20 {
			r.clock = r.clock.Add(100 * time.Millisecond)
			r.step()
		}
	}
	if n := r.kernel.Commits() - heals; n > 25 {
		t.Errorf("%d heals in five minutes", n)
	}
}
