package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// patience bounds a download; after it the download counts as lost and the next one begins.
const patience = 50 * time.Millisecond

// gap downloads again and again, each time on a connection of its own, and prints the longest time without an
// answer.
func gap(ctx context.Context, out io.Writer, url string, every, length time.Duration) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	end := time.Now().Add(length)
	var done, lost int
	var last time.Time
	var longest time.Duration
	for time.Now().Before(end) && ctx.Err() == nil {
		if err := download(ctx, client, url); err != nil {
			lost++
		} else {
			now := time.Now()
			if done++; done > 1 {
				longest = max(longest, now.Sub(last))
			}
			last = now
		}
		time.Sleep(every)
	}
	if done == 0 {
		return fmt.Errorf("nothing came from %s", url)
	}
	if end.Sub(last) > time.Second {
		return fmt.Errorf("nothing came from %s any more, after %d downloads", url, done)
	}
	_, err := fmt.Fprintf(out, "%d downloads, %d lost, at most %d ms without one\n", done, lost, longest.Milliseconds())
	return err
}

func download(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, response.Body)
	return errors.Join(err, response.Body.Close())
}
