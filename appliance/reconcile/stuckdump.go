package reconcile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// keptDumps is the number of goroutine dumps that are kept in the data directory, the newest.
const keptDumps = 3

// Dumps are called stuck-20260102T150405.000Z.txt.
const (
	dumpPrefix = "stuck-"
	dumpSuffix = ".txt"
)

// writeDump writes a goroutine dump to a new file of the data directory, removes the oldest beyond
// those that are kept, and gives its path. Only the owner may read it: it has the arguments of
// functions.
func writeDump(dir string, at time.Time, goroutines []byte) (file string, err error) {
	file = filepath.Join(dir, dumpPrefix+at.UTC().Format("20060102T150405.000Z")+dumpSuffix)
	if err := os.WriteFile(file, goroutines, 0o600); err != nil {
		_ = os.Remove(file) // half a dump on a full disk
		return "", fmt.Errorf("write the goroutines: %w", err)
	}
	entries, err := os.ReadDir(dir) // by name, which is by time
	if err != nil {
		return file, nil
	}
	var dumps []string
	for _, entry := range entries {
		if name := entry.Name(); strings.HasPrefix(name, dumpPrefix) && strings.HasSuffix(name, dumpSuffix) {
			dumps = append(dumps, name)
		}
	}
	for _, old := range dumps[:max(0, len(dumps)-keptDumps)] {
		_ = os.Remove(filepath.Join(dir, old)) // the next dump tries again
	}
	return file, nil
}
