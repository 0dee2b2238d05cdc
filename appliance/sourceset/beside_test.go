package sourceset

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Other files of the directory are written without a pause, as logs are. A set that changes eight times is read each time within a
// minute in all: when the directory is quiet it never is, and every 10 seconds is too rare.
func Test1043_source_set_beside_files_that_are_written_without_a_pause(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "office.txt")
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	}
	write(path, "192.0.2.0/32")
	taken := make(chan []netip.Prefix, 100)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	running.Go(func() {
		for ctx.Err() == nil {
			write(filepath.Join(dir, "other.log"), "a line\n")
			time.Sleep(20 * time.Millisecond)
		}
	})
	running.Go(func() {
		r := NewReader([]File{{"office", path}})
		if err := r.Run(ctx, func(_ string, prefixes []netip.Prefix) { taken <- prefixes }, func() {}); err != nil {
			t.Error(err)
		}
	})
	limit := time.After(time.Minute)
	for n := range 9 {
		want := fmt.Sprintf("192.0.2.%d/32", n)
		write(path, want)
		for got := ""; got != want; {
			select {
			case prefixes := <-taken:
				got = fmt.Sprint(prefixes[0])
			case <-limit:
				t.Fatalf("change %d is not read within the minute of all", n)
			}
		}
	}
}
