package fleet

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func Test655_a_member_hangs(t *testing.T) {
	t.Run("another one is asked", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			got, err := ask(t.Context(), func(ctx context.Context) (string, error) {
				if asked++; asked == 1 {
					<-ctx.Done() // as a member that hangs
					return "", ctx.Err()
				}
				return "the other one", nil
			})
			if got != "the other one" || err != nil || asked != 2 {
				t.Errorf("%d questions bring %q, %v", asked, got, err)
			}
		})
	})
	t.Run("nobody answers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), beatTimeout)
			defer cancel()
			asked := 0
			_, err := ask(ctx, func(ctx context.Context) (string, error) {
				asked++
				<-ctx.Done()
				return "", ctx.Err()
			})
			if !errors.Is(err, context.DeadlineExceeded) || asked != 2 {
				t.Errorf("%d questions bring %v", asked, err)
			}
		})
	})
	t.Run("a refusal is an answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			asked, refused := 0, errors.New("refused")
			if _, err := ask(t.Context(), func(context.Context) (string, error) { asked++; return "", refused }); !errors.Is(err, refused) || asked != 1 {
				t.Errorf("%d questions bring %v", asked, err)
			}
		})
	})
	// A watch without anything is begun anew at once, and then after longer and longer: a commit that takes 17 s to come over a slow
	// connection has to come with one of them.
	t.Run("a watch on which nothing comes", func(t *testing.T) {
		var r restarts
		start := time.Now()
		var longest time.Duration
		begun := start
		for now := start; now.Sub(start) < 3*time.Minute; now = now.Add(beatEvery) {
			if r.due(7, now) {
				longest, begun = max(longest, now.Sub(begun)), now
			}
			if now == start && r.at != start {
				t.Error("the first one is not begun at once")
			}
		}
		if longest < 17*time.Second {
			t.Errorf("no watch had more than %s", longest)
		}
		// What comes says how long one takes here: the next one is not ended before that.
		if r.due(8, begun) || r.due(8, begun.Add(longest/5)) {
			t.Error("the watch is begun anew although something has come")
		}
		for n := int64(9); n < 20; n++ {
			r.due(n, begun)
		}
		if !r.due(20, begun) {
			t.Error("a watch of a fast connection is not begun anew at once")
		}
	})
}
