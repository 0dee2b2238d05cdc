package announce

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// stateName is the file in Config.StateDir.
const stateName = "announcements.json"

// trusted is for how long after an orderly stop the addresses are still taken for ours: a restart
// does not ask the neighbors first, and who stayed away for longer does.
const trusted = 10 * time.Second

// state is the content of the file, from which a restart goes on.
type state struct {
	// Ranges and Wanted are of the last message of serve.
	Ranges []string `json:"ranges"`
	Wanted []string `json:"wanted"`
	// Announced are those of them that were answered.
	Announced []string `json:"announced"`
	// Stopped is when the process stopped in good order; the zero Time: it did not.
	Stopped time.Time `json:"stopped,omitzero"`
}

// loadState reads the file; an empty state if there is none.
func loadState(dir string) (s state, err error) {
	content, err := os.ReadFile(filepath.Join(dir, stateName))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &s)
	}
	if err != nil {
		return state{}, fmt.Errorf("read what was announced last: %w", err)
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
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
