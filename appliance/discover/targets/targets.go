package targets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/appliance/discover/remote"
)

const (
	// every is the interval at which a URL is requested. A file is read at that interval as well, since a symbolic link may change in a
	// directory that is not watched.
	every = 10 * time.Second
	// settle is the time for which a file with invalid JSON is read again, since it may be being written in place; pause is the time between
	// two reads.
	settle, pause = time.Second, 50 * time.Millisecond
	// fileBytes is the largest size of a file in bytes.
	fileBytes = 32 << 20
)

// Provider gets endpoints from one file or URL in the JSON of Prometheus' file_sd_config.
type Provider struct {
	path   string         // of the file; "" for a URL
	client *remote.Client // nil for a file
	query  url.Values
	at     string // path of the URL
	hub    remote.Hub
	groups atomic.Pointer[[]group] // the last groups read
}

// group is an element of the list in the file: targets with common labels.
type group struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// New returns a Provider. It requires the URL of a file or a server. The content of TARGETS_TOKEN_FILE is sent to the server as a bearer
// token.
func New(c provider.Config) (provider.Provider, error) {
	const need = "must be file:///PATH, http://HOST/PATH or https://HOST/PATH, as in --from targets+file:///PATH"
	u, err := url.Parse(c.URL)
	if err != nil || c.URL == "" {
		return nil, fmt.Errorf("its URL %s", need)
	}
	p := &Provider{hub: remote.Hub{Pace: pause}}
	switch u.Scheme {
	case "file":
		if u.Host != "" || !filepath.IsAbs(u.Path) || strings.HasSuffix(u.Path, "/") {
			return nil, fmt.Errorf("%q: %s", u.Redacted(), need)
		}
		p.path = filepath.Clean(u.Path)
		return p, nil
	case "http", "https":
	default:
		return nil, fmt.Errorf("%q: %s", u.Redacted(), need)
	}
	p.query, p.at = u.Query(), u.EscapedPath()
	u.Path, u.RawPath, u.RawQuery = "", "", ""
	p.client, err = remote.NewClient(remote.Server{
		URL: u.String(), TokenHeader: "Authorization", TokenFile: c.Env["TARGETS_TOKEN_FILE"], Conns: 1,
		Header: http.Header{"Accept": {"application/json"}},
	})
	return p, err
}

// Follow implements provider.Provider. All questions share one read of the file or URL.
func (p *Provider) Follow(ctx context.Context, q provider.Question, take func(provider.Answer)) error {
	if _, err := q.Only(nil); err != nil {
		return err
	}
	name := q.Name
	if !strings.Contains(name, "=") {
		name = "job=" + name
	}
	labels, err := provider.SelectorOf(name)
	if err != nil {
		return err
	}
	stream := p.watch
	if p.client != nil {
		stream = p.poll
	}
	return p.hub.Follow(ctx, q, take, stream, func(context.Context) (provider.Answer, error) { return answerOf(*p.groups.Load(), labels) })
}

// answerOf returns the targets of the groups that have the labels. It returns an error if a target is not an address and port, since the answer would
// be incomplete without it.
func answerOf(groups []group, labels provider.Selector) (answer provider.Answer, err error) {
	for i, g := range groups {
		if !labels.Matches(g.Labels) {
			continue
		}
		for j, target := range g.Targets {
			at, err := netip.ParseAddrPort(target)
			if err != nil || at.Port() == 0 {
				return answer, fmt.Errorf("[%d].targets[%d]: must be an IP address and a port: %.100q", i, j, target)
			}
			e := provider.Endpoint{Address: at.Addr().String(), Port: at.Port(), Node: g.Labels["node"]}
			for _, label := range []string{"weight", "priority", "zone"} {
				if err := e.Label(label, g.Labels[label]); err != nil {
					return answer, fmt.Errorf("[%d]: %w", i, err)
				}
			}
			answer.Endpoints = append(answer.Endpoints, e)
		}
	}
	return answer, nil
}

// take stores new groups, and wakes all questions. It returns an error, and stores nothing, if a group has no targets.
func (p *Provider) take(groups []group, e *remote.Events) error {
	for i, g := range groups {
		if g.Targets == nil {
			return fmt.Errorf("[%d].targets: is missing", i)
		}
	}
	p.groups.Store(&groups)
	e.Ready()
	e.Wake(func(provider.Question) bool { return true })
	return nil
}

// poll requests the URL periodically and passes its groups to take. It returns when ctx is done or after an error.
func (p *Provider) poll(ctx context.Context, e *remote.Events) error {
	etag := ""
	for {
		next, err := p.ask(ctx, etag, e)
		if err != nil {
			return fmt.Errorf("%w (%s)", err, p.at)
		}
		etag = next
		if err := remote.Sleep(ctx, every); err != nil {
			return err
		}
	}
}

func (p *Provider) ask(ctx context.Context, etag string, e *remote.Events) (next string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var more []string
	codes := []int{}
	if etag != "" {
		more, codes = []string{"If-None-Match", etag}, []int{http.StatusNotModified}
	}
	resp, err := p.client.Get(ctx, p.at, p.query, more, codes...)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotModified {
		return etag, nil
	}
	text, err := p.client.Read(ctx, resp)
	if err != nil {
		return "", err
	}
	var groups []group
	if err := remote.Unmarshal(text, &groups); err != nil {
		return "", err
	}
	return resp.Header.Get("ETag"), p.take(groups, e)
}

// watch reads the file after each change and passes its groups to take. It returns when ctx is done or after an error.
func (p *Provider) watch(ctx context.Context, e *remote.Events) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last []byte
	for {
		file, err := p.watchDirs(watcher)
		if err != nil {
			return err
		}
		text, groups, err := p.read(ctx, last)
		if err == nil && groups != nil {
			err = p.take(groups, e)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p.path, err)
		}
		last = text
		rest := time.After(pause)
		for changed := false; !changed || rest != nil; {
			select {
			case e := <-watcher.Events:
				changed = changed || p.concerns(e.Name, file)
			case <-watcher.Errors: // events were lost
				changed = true
			case <-tick.C:
				changed = true
			case <-rest:
				rest = nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// concerns reports whether an event about a name in a watched directory can be a change of the file, which was at the path file: it is about the file, or
// the symbolic links lead elsewhere now.
func (p *Provider) concerns(name, file string) bool {
	if name == p.path || name == file {
		return true
	}
	now, err := filepath.EvalSymlinks(p.path)
	return err != nil || now != file
}

// watchDirs watches the directories of the file and of the target of its symbolic links, and returns the path of that target. The file itself is not
// watched, since a rename replaces it.
func (p *Provider) watchDirs(watcher *fsnotify.Watcher) (file string, err error) {
	if file, err = filepath.EvalSymlinks(p.path); err != nil {
		return "", err
	}
	for _, name := range []string{p.path, file} {
		if err := watcher.Add(filepath.Dir(name)); err != nil {
			return "", fmt.Errorf("%s: %w", filepath.Dir(name), err)
		}
	}
	return file, nil
}

// read returns the text and the groups of the file. It repeats while the JSON is invalid, for at most settle. If the text equals last,
// groups is nil.
func (p *Provider) read(ctx context.Context, last []byte) (text []byte, groups []group, err error) {
	begin := time.Now()
	for {
		groups = nil // what a cut text left in it would stay
		if text, err = readFile(p.path); err == nil && last != nil && bytes.Equal(text, last) {
			return text, nil, nil
		} else if err == nil {
			err = remote.Unmarshal(text, &groups)
		}
		if err == nil || time.Since(begin) > settle {
			return text, groups, err
		}
		if err := remote.Sleep(ctx, pause); err != nil {
			return nil, nil, err
		}
	}
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular(): // a pipe would block
		return nil, errors.New("is no regular file")
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, fileBytes+1))
	if err == nil && len(text) > fileBytes {
		err = fmt.Errorf("has more than %d MiB", fileBytes>>20)
	}
	return text, err
}
