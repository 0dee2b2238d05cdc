package tlsterm

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Fetch sets whether the responder of a Secret's certificate is asked: see Staple.
func (k *Keeper) Fetch(secret string, fetch bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case !fetch:
		delete(k.fetched, secret)
	case k.fetched[secret] == nil:
		k.fetched[secret] = &asking{}
	}
}

// Staple asks the responders of certificates for OCSP responses, until ctx is done: each when half of the time of
// the last response is over. woken has a value when certificates or what Fetch said may have changed; changed is called
// with Secrets about which Pair may say something else.
func (k *Keeper) Staple(ctx context.Context, woken <-chan struct{}, changed func(secrets []string)) {
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-woken:
		case <-timer.C:
		}
		due, next := k.dueForStaple(time.Now())
		for secret := range k.askAll(ctx, client, due) {
			changed([]string{secret})
		}
		if ctx.Err() != nil {
			return
		}
		if len(due) > 0 {
			_, next = k.dueForStaple(time.Now())
		}
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(max(time.Until(next), 0))
		}
	}
}

// askAll asks the responders of certificates, some at a time, so that one that does not answer holds up none but those
// behind it. The channel gives the Secrets about which that is news, and is closed after the last answer.
func (k *Keeper) askAll(ctx context.Context, client *http.Client, due []dueStaple) <-chan string {
	news, queue := make(chan string), make(chan dueStaple)
	var all sync.WaitGroup
	for range min(askAtOnce, len(due)) {
		all.Go(func() {
			for d := range queue {
				s, err := d.pair.ask(ctx, client)
				if ctx.Err() == nil && k.answered(d.secret, d.pair, s, err) {
					news <- d.secret
				}
			}
		})
	}
	go func() {
		for _, d := range due {
			queue <- d
		}
		close(queue)
		all.Wait()
		close(news)
	}()
	return news
}

// dueStaple is a certificate whose responder is to be asked.
type dueStaple struct {
	secret string
	pair   *Pair
	fails  int // since its responder last answered
}

// dueForStaple are the certificates whose responders are to be asked now, and when the next one is; the zero Time: never.
func (k *Keeper) dueForStaple(now time.Time) (due []dueStaple, next time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for secret, a := range k.fetched {
		kept := k.pairs[secret]
		if kept == nil || kept.good == nil {
			continue
		}
		if a.of != kept.good {
			*a = asking{of: kept.good}
		}
		switch {
		case !now.Before(a.next):
			due = append(due, dueStaple{secret, kept.good, a.fails})
		case next.IsZero() || a.next.Before(next):
			next = a.next
		}
	}
	// Responders that failed before come last.
	slices.SortFunc(due, func(a, b dueStaple) int {
		return cmp.Or(cmp.Compare(a.fails, b.fails), strings.Compare(a.secret, b.secret))
	})
	return due, next
}

// answered notes what a responder said about a certificate, and reports whether that is news.
func (k *Keeper) answered(secret string, p *Pair, s *staple, err error) (news bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	a := k.fetched[secret]
	if a == nil || a.of != p {
		return false // it is for another certificate, or for none
	}
	_, had := p.Stapled(now)
	before := a.wrong
	if a.wrong = err; err != nil {
		a.next = now.Add(min(askAgain<<min(a.fails, 6), askAtMost))
		a.fails++
		return before == nil || before.Error() != err.Error()
	}
	p.stapled.Store(s)
	a.fails, a.next = 0, now.Add(max(s.until.Sub(now)/2, askAtLeast))
	return before != nil || !had
}
