package watch

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// counted is a LastGood that counts.
type counted struct {
	*Memory
	saves atomic.Int64
}

func (c *counted) Save(path string, content []byte) error {
	c.saves.Add(1)
	return c.Memory.Save(path, content)
}

// A file that changes all the time is saved now and then, and in the end as it is.
func TestSavesAreCoalesced(t *testing.T) {
	to := &counted{Memory: NewMemory()}
	bubble(t, nil, func(h *harness) {
		h.within(0, 3*time.Second)
		last := ""
		for i := range 20 {
			last = services(fmt.Sprint("web", i))
			h.write("a.yaml", "# "+strings.Repeat("x", i)+"\n"+services("web"))
			h.send("a.yaml", fsnotify.Write)
			h.next()
		}
		if n := to.saves.Load(); n < 2 || n > 10 {
			h.Errorf("20 changes were saved %d times", n)
		}
		h.write("a.yaml", services("web")+"---\n"+last)
		h.send("a.yaml", fsnotify.Write)
		h.next()
		time.Sleep(2 * saveRest)
		saved, _ := to.Load()
		if got := string(saved[h.path("a.yaml")]); got != services("web")+"---\n"+last {
			h.Errorf("in the end %q is saved", got)
		}
	}, lastGood(to))
}
