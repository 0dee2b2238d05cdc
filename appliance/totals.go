package appliance

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"

	"svcctl.io/svcctl/appliance/flows"
	"svcctl.io/svcctl/nft"
)

// totalsName is a file of the data directory.
const totalsName = "totals.json"

// totals are counts that the next process goes on with, after a hand-over or a stop. A start removes the file, so that
// after a crash totals begin at 0: old ones would go back by the counts since, and for Prometheus a counter that
// goes back was reset.
type totals struct {
	Boot     string // they are of; "": not known
	Counters []nft.Tallied
	Flows    *flows.Saved // nil: connection events were not read
	Failures map[string]map[netip.AddrPort]uint64
}

// takeTotals returns the totals that the process before left.
func takeTotals(dir string, log *slog.Logger) (t totals) {
	path := filepath.Join(dir, totalsName)
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return t
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err == nil {
		err = json.Unmarshal(content, &t)
	}
	if err != nil {
		log.Warn("totals of connections begin at 0", "file", path, "err", err)
		return totals{}
	}
	if t.Boot != bootID() {
		return totals{} // the kernel begins at 0 as well
	}
	return t
}

// leaveTotals leaves the totals to the next process.
func (a *assembly) leaveTotals() {
	t := totals{Boot: bootID(), Counters: a.kernel.Tally().Save(), Failures: a.parts.suspicion.Book().Failures()}
	if a.parts.flows != nil {
		t.Flows = a.parts.flows.Totals().Save()
	}
	path := filepath.Join(a.cfg.DataDir, totalsName)
	content, err := json.Marshal(t)
	if err == nil {
		err = os.WriteFile(path+".new", content, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		a.log.Warn("totals of connections begin at 0 with the next start", "err", errors.Join(err, os.Remove(path+".new")))
	}
}

// bootID is the kernel's name of this boot; "": it has none.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(id)
}
