package appliance

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/sources"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/fleet"
)

// sourceTurns implements sources.Turns with the leases of the fleet.
type sourceTurns struct{ engine *fleet.Engine }

// Want sets the sources whose lease this box competes for (true) or only observes (false).
func (t sourceTurns) Want(willing map[string]bool) { t.engine.WantSources(willing) }

// Turn returns which box holds the lease of a source.
func (t sourceTurns) Turn(name string) sources.Turn { return sources.Turn(t.engine.SourceTurn(name)) }

// Changed returns a channel that is closed when the holder of a lease may have changed.
func (t sourceTurns) Changed() <-chan struct{} { return t.engine.Changes() }

// newReader returns the Reader of this box's manifest directories.
func (m *member) newReader(removals *reconcile.RemovalGuard, log *slog.Logger) *sources.Reader {
	hold := func(r store.Removals) func(string) store.Decision { return removals.Hold(r, time.Now()) }
	return sources.New(sources.Config{
		Dirs: sourceDirs(m.cfg), Box: m.cfg.NodeName, Instance: m.engine.Instance(), Store: m.store, Turns: sourceTurns{m.engine},
		Guard:  func(r store.Removals) func(string) store.Decision { return holdRemovals(m.cfg, hold, r) },
		Failed: removals.Failed, Log: log,
		Wake: func() {
			if wake := m.wake.Load(); wake != nil {
				(*wake)()
			}
		},
	})
}

// sourceDirs returns the manifest directories as absolute paths, with the names of their sources.
func sourceDirs(cfg *config.Config) (dirs []sources.Dir) {
	for _, s := range cfg.ManifestSources() {
		path, err := filepath.Abs(s.Dir)
		if err != nil {
			path = s.Dir // the watcher logs the reason
		}
		dirs = append(dirs, sources.Dir{Name: s.Name, Path: path})
	}
	return dirs
}

// files returns the reconcile.Files that stores the files of manifest directories in a fleet. It returns nil without a fleet; the reconcile loop then
// stores the files itself.
func (m *member) files() reconcile.Files {
	if m == nil {
		return nil
	}
	return m.sources
}

// named returns a function that adds names, readers and states of sources to a list of directories in the status; nil without a fleet.
func (m *member) named() func([]wire.Source) {
	if m == nil {
		return nil
	}
	return func(list []wire.Source) {
		for i, s := range m.sources.States() {
			if i >= len(list) {
				return
			}
			list[i].Name, list[i].Reader = s.Name, s.Reader
			if list[i].State != wire.SourceOK {
				continue
			}
			switch {
			case s.Verdict.Behind:
				list[i].State = wire.SourceBehind
			case s.Verdict.Differs != "":
				list[i].State = wire.SourceDiffers
			case !s.Mine:
				list[i].State = wire.SourceStandby
			}
		}
	}
}

// holdRemovals calls the guard hold for the removals in r, and returns a function that returns its decision for a file. In a fleet a file is named
// SOURCE:path in r; the guard gets the local path.
func holdRemovals(cfg *config.Config, hold store.RemovalGuard, r store.Removals) func(string) store.Decision {
	dirs := map[string]string{}
	for _, d := range sourceDirs(cfg) {
		dirs[d.Name] = d.Path
	}
	here := func(path string) string {
		name, relative, _ := strings.Cut(path, ":")
		return filepath.Join(dirs[name], relative)
	}
	local := r
	local.Files = make(map[string][]string, len(r.Files))
	for path, services := range r.Files {
		local.Files[here(path)] = services
	}
	decide := hold(local)
	return func(path string) store.Decision { return decide(here(path)) }
}

// endpoints returns the fleet operations of the API; none without a fleet.
func (m *member) endpoints() []api.Endpoint {
	if m == nil {
		return nil
	}
	return []api.Endpoint{
		api.Answer(wire.GetFleet, func(r *http.Request, _ wire.None) (state wire.Fleet, err error) {
			state = m.State()
			if state.Boxes, err = m.Boxes(r.Context()); err != nil {
				return state, wire.Unavailable("the boxes of the fleet are not known: %v", err)
			}
			return state, nil
		}),
		api.Answer(wire.AcceptFleet, func(r *http.Request, _ wire.None) (wire.Fleet, error) {
			before := m.State()
			if err := m.engine.Accept(r.Context()); err != nil {
				return before, wire.Conflict("nothing is accepted: %v", err)
			}
			m.log.Warn("what etcd has is accepted", "fleet", before.Name, "was", before.State, "revision", before.Revision, "user", api.UserOf(r))
			return m.State(), nil
		}),
		api.Answer(wire.GetSources, func(r *http.Request, _ wire.None) ([]wire.FleetSource, error) {
			list, err := m.listSources(r.Context())
			if err != nil {
				return nil, wire.Unavailable("the readers of the fleet's sources are not known: %v", err)
			}
			return list, nil
		}),
		api.Answer(wire.TakeSource, func(r *http.Request, q wire.SourceQuery) (wire.FleetSource, error) {
			if q.Name == "" || q.Box == "" {
				return wire.FleetSource{}, wire.BadRequest("the request names no source, or no box: ask with ?name=SOURCE&box=BOX")
			}
			before, err := m.takeSource(r.Context(), q.Name, q.Box)
			if err != nil {
				return before, wire.Conflict("nothing is changed: %v", err)
			}
			m.log.Warn("a source is given to a box", "source", q.Name, "box", q.Box, "before", before.Reader, "user", api.UserOf(r))
			return before, nil
		}),
		api.Answer(wire.ForgetSource, func(r *http.Request, q wire.SourceQuery) (gone wire.ForgottenSource, err error) {
			if q.Name == "" {
				return gone, wire.BadRequest("the request names no source: ask with ?name=SOURCE")
			}
			if gone.FleetSource, gone.Objects, err = m.forgetSource(r.Context(), q.Name); err != nil {
				return gone, wire.Conflict("nothing is changed: %v", err)
			}
			m.log.Warn("a source is forgotten", "source", q.Name, "reader", gone.Reader, "objects", gone.Objects, "user", api.UserOf(r))
			return gone, nil
		}),
	}
}

// listSources returns the sources of the fleet. Their current readers are read from etcd.
func (m *member) listSources(ctx context.Context) ([]wire.FleetSource, error) {
	holders, err := m.engine.SourceHolders(ctx)
	if err != nil {
		return nil, err
	}
	list := []wire.FleetSource{}
	for _, s := range m.store.Sources() {
		list = append(list, wire.FleetSource{
			Name: s.Name, Reader: s.Reader, Reading: holders[s.Name] == s.Reader, Files: s.Files, Generation: s.Generation, Since: s.Since,
		})
	}
	return list, nil
}

// forgetSource removes a source that is not configured on any box. Its objects then belong to API clients; objects is their number.
func (m *member) forgetSource(ctx context.Context, name string) (before wire.FleetSource, objects int, err error) {
	boxes, err := m.engine.Boxes(ctx)
	if err != nil {
		return before, 0, err
	}
	for _, b := range boxes {
		if b.Present && slices.Contains(b.Sources, name) {
			return before, 0, fmt.Errorf("box %s has the source: start it without --manifests %s=DIR first, or it would be read again", b.Box, name)
		}
	}
	list, err := m.listSources(ctx)
	if err != nil {
		return before, 0, err
	}
	if at := slices.IndexFunc(list, func(s wire.FleetSource) bool { return s.Name == name }); at >= 0 {
		before = list[at]
	}
	objects, err = m.store.ForgetSource(name)
	return before, objects, err
}

// takeSource makes a box the reader of a source. It returns the previous state of the source.
func (m *member) takeSource(ctx context.Context, name, box string) (before wire.FleetSource, err error) {
	boxes, err := m.engine.Boxes(ctx)
	if err != nil {
		return before, err
	}
	i := slices.IndexFunc(boxes, func(b fleet.Box) bool { return b.Box == box && b.Present })
	switch {
	case i < 0:
		return before, fmt.Errorf("no box %s reports: `svcctl get boxes` names them", box)
	case !slices.Contains(boxes[i].Sources, name):
		return before, fmt.Errorf("box %s has no source %s: start it with --manifests %s=DIR", box, name, name)
	}
	list, err := m.listSources(ctx)
	if err != nil {
		return before, err
	}
	at := slices.IndexFunc(list, func(s wire.FleetSource) bool { return s.Name == name })
	if at < 0 {
		return before, fmt.Errorf("no box has read a source %s yet: the first one that is started with --manifests %s=DIR reads it", name, name)
	}
	return list[at], m.store.TakeSource(name, box)
}
