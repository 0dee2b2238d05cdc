package announce

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// stateName is the file in Config.StateDir.
const stateName = "announcements.json"

// trusted is for how long after an orderly stop the addresses are still taken for ours: a restart
// does not ask the neighbors first, and who stayed away for longer does.
const trusted = 10 * time.Second

// state is the content of the file, from which a restart goes on.
type state struct {
	// Ranges and Wanted are of the last message of serve.
	Ranges []string `json:"ranges,omitempty"`
	Wanted []string `json:"wanted,omitempty"`
	// Announced lists the addresses of Wanted that were answered for.
	Announced []string `json:"announced,omitempty"`
	// Ads has where the addresses of Wanted are announced, if not by flags alone; Config is the configuration by
	// objects.
	Ads    map[string]ad        `json:"ads,omitempty"`
	Config *wire.AnnounceConfig `json:"config,omitempty"`
	// Drained reports that nothing was to be announced.
	Drained bool `json:"drained,omitempty"`
	// Stopped is the time of an orderly stop; the zero Time: there was none.
	Stopped time.Time `json:"stopped,omitzero"`
}

// step is a line of the file after the first one, which is a state: what changed of one address.
type step struct {
	Address string `json:"address"`
	fate
}

// fate is the content of the file about an address.
type fate struct {
	ad
	Wanted    bool `json:"wanted,omitempty"`
	Announced bool `json:"announced,omitempty"`
}

// loadState reads the file; an empty state if there is none. A last line that is not whole, of a process that
// was killed while it wrote, is left out.
func loadState(dir string) (s state, err error) {
	content, err := os.ReadFile(filepath.Join(dir, stateName))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read what was announced last: %w", err)
	}
	first, steps, _ := bytes.Cut(content, []byte("\n"))
	if err := json.Unmarshal(first, &s); err != nil {
		return state{}, fmt.Errorf("read what was announced last: %w", err)
	}
	fates := map[string]fate{}
	for _, addr := range s.Wanted {
		f := fate{Wanted: true, ad: ad{Flags: true}}
		if other, is := s.Ads[addr]; is {
			f.ad = other
		}
		fates[addr] = f
	}
	for _, addr := range s.Announced {
		f := fates[addr]
		f.Announced = true
		fates[addr] = f
	}
	for line := range bytes.Lines(steps) {
		var one step
		if json.Unmarshal(line, &one) != nil {
			break
		}
		fates[one.Address] = one.fate
	}
	s.Wanted, s.Announced, s.Ads = nil, nil, map[string]ad{}
	for addr, f := range fates {
		if f.Wanted {
			s.Wanted = append(s.Wanted, addr)
			s.Ads[addr] = f.ad
		}
		if f.Announced {
			s.Announced = append(s.Announced, addr)
		}
	}
	return s, nil
}

// save replaces the file. It need not survive a crash of the machine, so nothing is synced.
func (s state) save(dir string) error {
	content, err := json.Marshal(s)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, stateName)
	if err := os.WriteFile(path+".new", append(content, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// keeper writes the file at a cost proportional to what changed: changes are appended, and the file is
// written anew when more were appended than there are addresses.
type keeper struct {
	dir   string
	dirty map[netip.Addr]struct{} // changed since the file was written
	anew  bool                    // something else changed, or the file is not ours yet
	steps int                     // lines that were appended
	due   <-chan time.Time        // when the file is to be written
}

func newKeeper(dir string) *keeper {
	return &keeper{dir: dir, dirty: map[netip.Addr]struct{}{}, anew: true}
}

// add has the file be written with what became of an address.
func (k *keeper) add(addr netip.Addr) {
	k.dirty[addr] = struct{}{}
	later(&k.due, savePause)
}

// everything has the file be written anew.
func (k *keeper) everything() {
	k.anew = true
	later(&k.due, savePause)
}

// fewSteps are lines that may always be appended.
const fewSteps = 1000

// save has the file be what it should be. whole is called when all of it is written, and size is how many
// addresses that are.
func (k *keeper) save(size int, whole func() state, of func(netip.Addr) fate) error {
	if !k.anew && k.steps+len(k.dirty) <= max(size, fewSteps) {
		return k.append(of)
	}
	if err := whole().save(k.dir); err != nil {
		return err
	}
	k.anew, k.steps = false, 0
	clear(k.dirty)
	return nil
}

// append adds lines for the addresses that changed. After a failure the file is written anew.
func (k *keeper) append(of func(netip.Addr) fate) error {
	if len(k.dirty) == 0 {
		return nil
	}
	var b bytes.Buffer
	lines := json.NewEncoder(&b)
	for addr := range k.dirty {
		if err := lines.Encode(step{addr.String(), of(addr)}); err != nil {
			return err
		}
	}
	k.anew = true
	f, err := os.OpenFile(filepath.Join(k.dir, stateName), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	if _, err = f.Write(b.Bytes()); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	k.anew, k.steps = false, k.steps+len(k.dirty)
	clear(k.dirty)
	return nil
}
