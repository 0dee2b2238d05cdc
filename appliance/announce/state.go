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

// trusted is the time after an orderly stop for which the addresses still count as ours: a restart within it
// does not probe them.
const trusted = 10 * time.Second

// state is the content of the file, from which a restart goes on.
type state struct {
	// Ranges and Wanted are of the last message of serve.
	Ranges []string `json:"ranges,omitempty"`
	Wanted []string `json:"wanted,omitempty"`
	// Announced has the addresses of Wanted that were answered for.
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

// step is a line of the file after the first one, which is a state: a change of one address.
type step struct {
	Address string `json:"address"`
	lastStatus
}

// lastStatus is the content of the file about an address.
type lastStatus struct {
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
	last := map[string]lastStatus{}
	for _, addr := range s.Wanted {
		f := lastStatus{Wanted: true, ad: ad{Flags: true}}
		if other, is := s.Ads[addr]; is {
			f.ad = other
		}
		last[addr] = f
	}
	for _, addr := range s.Announced {
		f := last[addr]
		f.Announced = true
		last[addr] = f
	}
	for line := range bytes.Lines(steps) {
		var one step
		if json.Unmarshal(line, &one) != nil {
			break
		}
		last[one.Address] = one.lastStatus
	}
	s.Wanted, s.Announced, s.Ads = nil, nil, map[string]ad{}
	for addr, f := range last {
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

// stateWriter writes the file at a cost proportional to the changes: they are appended, and the file is
// replaced when more were appended than there are addresses.
type stateWriter struct {
	dir   string
	dirty map[netip.Addr]struct{} // changed since the file was written
	whole bool                    // the file must be replaced
	steps int                     // lines that were appended
	due   <-chan time.Time        // fires when the file is to be written
}

func newStateWriter(dir string) *stateWriter {
	return &stateWriter{dir: dir, dirty: map[netip.Addr]struct{}{}, whole: true}
}

// add schedules a line for an address.
func (w *stateWriter) add(addr netip.Addr) {
	w.dirty[addr] = struct{}{}
	later(&w.due, savePause)
}

// everything schedules the replacement of the file.
func (w *stateWriter) everything() {
	w.whole = true
	later(&w.due, savePause)
}

// fewSteps are lines that may always be appended.
const fewSteps = 1000

// save updates the file: it appends a line for each address that changed, with the status that of returns, or replaces the file by
// what all returns, when lines have come to outnumber the size addresses of a replacement.
func (w *stateWriter) save(size int, all func() state, of func(netip.Addr) lastStatus) error {
	if !w.whole && w.steps+len(w.dirty) <= max(size, fewSteps) {
		return w.append(of)
	}
	if err := all().save(w.dir); err != nil {
		return err
	}
	w.whole, w.steps = false, 0
	clear(w.dirty)
	return nil
}

// append appends lines for the addresses that changed. After a failure the next save replaces the file.
func (w *stateWriter) append(of func(netip.Addr) lastStatus) error {
	if len(w.dirty) == 0 {
		return nil
	}
	var b bytes.Buffer
	lines := json.NewEncoder(&b)
	for addr := range w.dirty {
		if err := lines.Encode(step{addr.String(), of(addr)}); err != nil {
			return err
		}
	}
	w.whole = true
	f, err := os.OpenFile(filepath.Join(w.dir, stateName), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	if _, err = f.Write(b.Bytes()); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	w.whole, w.steps = false, w.steps+len(w.dirty)
	clear(w.dirty)
	return nil
}
