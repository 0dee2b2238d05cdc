package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// askers is the number of concurrent requests.
const askers = 4

// maxFailures is the number of failures that ends a run.
const maxFailures = 5

// timeout bounds one request.
const timeout = 2 * time.Second

// askInterval is the pause of an asker that asks for a length of time. A client has
// 28,232 ports (net.ipv4.ip_local_port_range) and each rests for a minute after use.
const askInterval = 2 * time.Millisecond

// holdInterval is the pause between two requests on the connection that is held open.
const holdInterval = 20 * time.Millisecond

// barWidth is the length in characters of the bar of a server that answers everything.
const barWidth = 48

// question has the URL, the number of requests, and the server that must answer.
type question struct {
	url    string
	count  int
	length time.Duration
	expect string
}

// tally counts the answers.
type tally struct {
	mu      sync.Mutex
	left    int            // requests still to be sent; below 0: no limit
	servers map[string]int // answers by server
	clients map[string]int // answers by the client address that the server saw
	failed  int
	failure error // the first one
	held    int   // answers on the connection that is held open
}

// ask sends the requests, prints who answered, and fails when a request failed or
// when others answered than were expected.
func (q question) ask(ctx context.Context, out io.Writer) error {
	t := &tally{left: q.count, servers: map[string]int{}, clients: map[string]int{}}
	var wg sync.WaitGroup
	var pause time.Duration
	if q.length > 0 {
		t.left, pause = -1, askInterval
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, q.length)
		defer stop()
		wg.Go(func() { t.hold(ctx, q.url) })
	}
	for range askers {
		wg.Go(func() { t.run(ctx, q.url, pause) })
	}
	wg.Wait()
	t.print(out)
	return t.verdict(q.expect)
}

// take reports whether there is one more request to send.
func (t *tally) take() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left == 0 || t.failed >= maxFailures {
		return false
	}
	t.left--
	return true
}

// run sends requests, each on a connection of its own, with a pause after each
// until there are no more.
func (t *tally) run(ctx context.Context, url string, pause time.Duration) {
	client := &http.Client{
		Timeout:   timeout,
		Transport: &http.Transport{DisableKeepAlives: true},
	}
	for ctx.Err() == nil && t.take() {
		t.count(get(client, url))
		time.Sleep(pause)
	}
}

// hold sends requests on one connection, which is not opened again when it breaks.
func (t *tally) hold(ctx context.Context, url string) {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.count("", "", err)
		return
	}
	port := cmp.Or(request.URL.Port(), "80")
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(request.URL.Hostname(), port), timeout)
	if err != nil {
		t.count("", "", err)
		return
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	for ctx.Err() == nil {
		if err := exchange(conn, answers, request); err != nil {
			t.count("", "", fmt.Errorf("the connection that was held open broke: %w", err))
			return
		}
		t.mu.Lock()
		t.held++
		t.mu.Unlock()
		time.Sleep(holdInterval)
	}
}

// exchange sends a request on a connection and reads the answer.
func exchange(conn net.Conn, answers *bufio.Reader, request *http.Request) error {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if err := request.Write(conn); err != nil {
		return err
	}
	response, err := http.ReadResponse(answers, request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// get sends one request and reads which server answered and which client it saw.
func get(client *http.Client, url string) (server, seen string, err error) {
	response, err := client.Get(url)
	if err != nil {
		return "", "", err
	}
	defer response.Body.Close()
	if _, err := fmt.Fscan(response.Body, &server, &seen); err != nil {
		return "", "", fmt.Errorf("read the answer: %w", err)
	}
	return server, seen, nil
}

func (t *tally) count(server, seen string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.failed++
		if t.failure == nil {
			t.failure = err
		}
		return
	}
	t.servers[server]++
	t.clients[seen]++
}

// print writes the table of who answered.
func (t *tally) print(out io.Writer) {
	answers := 0
	for _, n := range t.servers {
		answers += n
	}
	for _, server := range slices.Sorted(maps.Keys(t.servers)) {
		n := t.servers[server]
		bar := strings.Repeat("█", max(1, n*barWidth/answers))
		fmt.Fprintf(out, "    %-10s %-*s %4d\n", server, barWidth, bar, n)
	}
	fmt.Fprintf(out, "    %d connections, %d failed", answers+t.failed, t.failed)
	if t.held > 0 {
		fmt.Fprintf(out, "; %d requests on one connection held open throughout", t.held)
	}
	fmt.Fprintf(out, "\n    the servers saw client %s\n",
		strings.Join(slices.Sorted(maps.Keys(t.clients)), ", "))
}

// verdict is an error when a request failed or when others answered than were expected.
func (t *tally) verdict(expect string) error {
	if t.failed > 0 {
		return fmt.Errorf("%d requests failed, the first one: %w", t.failed, t.failure)
	}
	want := strings.Split(expect, ",")
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(t.servers)); expect != "" && !slices.Equal(got, want) {
		return fmt.Errorf("answers came from %v, not from %v", got, want)
	}
	return nil
}
