package appliance

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/apiserver"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/appliance/forecast"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/parts"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/watch"
)

const (
	// maxPlanned is the largest size of a request for a plan in bytes, the same as for apply.
	maxPlanned = 64 << 20
	// planAttempts is the number of attempts of a plan while other changes arrive.
	planAttempts = 10
)

// foreseer computes what a change of objects would change in the kernel. It makes the change in a copy of the store, with the same code as
// for the store, and asks the loop to plan the result.
type foreseer struct {
	a *assembly
	// turn lets one plan run at a time, as each takes the memory of the indexes of a second store.
	turn chan struct{}
}

// serve handles a request for a plan. The body is that of /svcctl/v1/apply. With removals=N it begins with N lines of JSON with objects to
// remove (wire.PlanRemoval). With directory=DIR it is lines of JSON with the files that a watched directory is to have (wire.PlanFile).
func (p *foreseer) serve(w http.ResponseWriter, r *http.Request) {
	plan, err := p.answer(w, r)
	api.Reply(w, r, plan, err)
}

func (p *foreseer) answer(w http.ResponseWriter, r *http.Request) (*wire.KernelPlan, error) {
	ctx := r.Context()
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPlanned))
	if err != nil {
		return nil, wire.NewFailure(http.StatusRequestEntityTooLarge, "RequestEntityTooLarge", fmt.Sprintf("read what is to be planned, of at most %d bytes: %v", maxPlanned, err))
	}
	for attempt := 1; ; attempt++ {
		switch plan, err := p.plan(ctx, r, body); {
		case err == nil:
			return plan, nil
		case !errors.Is(err, reconcile.ErrBehind) || attempt == planAttempts:
			return nil, refusedPlan(err)
		}
	}
}

// refusedPlan converts an error of planning to the error that a client of the API gets.
func refusedPlan(err error) error {
	for _, why := range []error{store.ErrForkTimed, store.ErrForkReserved, reconcile.ErrUnsettled, reconcile.ErrBehind, reconcile.ErrHeldBack} {
		if errors.Is(err, why) {
			return wire.Conflict("no plan can be made: %v", err)
		}
	}
	return err
}

// rehearsal is a copy of the store in which a change is made, with its own controllers.
type rehearsal struct {
	*controllers
	fork     *store.Store
	revision uint64 // revision of the copied store
	// problems and held are the problems and the held changes of the copy before the change.
	problems []manifest.Problem
	held     map[object.Ref]store.Decision
	began    uint64 // the revision of the copy before the change
}

func (p *foreseer) plan(ctx context.Context, req *http.Request, body []byte) (*wire.KernelPlan, error) {
	fork, revision, err := p.a.store.Fork()
	if err != nil {
		return nil, err
	}
	made, err := controllersOf(*p.a.cfg, fork, p.a.slices.Fork(fork, revision))
	if err != nil {
		return nil, err
	}
	r := &rehearsal{controllers: made, fork: fork, revision: revision, problems: fork.Problems(), held: fork.Held(), began: fork.Revision()}
	fork.Track()
	plan := &wire.KernelPlan{Revision: r.revision, Objects: []wire.PlannedObject{}, Services: []wire.PlannedService{}}
	if dir := req.URL.Query().Get("directory"); dir != "" {
		err = p.replaceFiles(r, dir, body, plan)
	} else {
		err = p.applyObjects(r, req, body, plan)
	}
	if err != nil {
		return nil, err
	}
	moved, err := r.sync()
	if err != nil {
		return nil, err
	}
	plan.Objects = append(r.changed(), plan.Objects...)
	f, err := p.foresee(ctx, r, moved)
	if err != nil {
		return nil, err
	}
	plan.Problems = f.Problems
	describe(&f, plan)
	return plan, nil
}

// applyObjects applies the objects of the body to the copy, and removes those that the client would prune. Refused objects are listed in
// the plan.
func (p *foreseer) applyObjects(r *rehearsal, req *http.Request, body []byte, plan *wire.KernelPlan) error {
	removals, body, err := removalsIn(req, body)
	if err != nil {
		return err
	}
	look := func(svc *object.Service) {
		p.a.admission.Look(svc)
		r.fork.SeeAs(p.a.store)
	}
	results, err := apiserver.Rehearse(r.fork, look, req, body)
	if err != nil {
		return err
	}
	for i, result := range results {
		if result.Status != nil {
			plan.Objects = append(plan.Objects, wire.PlannedObject{
				Object: refused(result.Status), Did: wire.Refused, Message: result.Status.Message, Document: i + 1, Status: result.Status})
		}
	}
	if len(plan.Objects) > 0 {
		return nil // nothing is pruned while an object is refused
	}
	kept, err := apiserver.RehearseRemovals(r.fork, req, removals)
	if err != nil {
		return err
	}
	for _, path := range slices.Sorted(maps.Keys(kept)) {
		plan.Objects = append(plan.Objects, wire.PlannedObject{Object: refused(kept[path]), Did: wire.Refused, Message: fmt.Sprintf("%s: not pruned: %s", path, kept[path].Message)})
	}
	return nil
}

// removalsIn splits the body of a request into the removals, which come first, and the rest.
func removalsIn(req *http.Request, body []byte) (removals []wire.PlanRemoval, rest []byte, err error) {
	text := req.URL.Query().Get("removals")
	if text == "" {
		return nil, body, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return nil, nil, wire.BadRequest("removals=%q: want how many lines of the body name what is to go", text)
	}
	for i := range n {
		var line []byte
		line, body, _ = bytes.Cut(body, []byte("\n"))
		var r wire.PlanRemoval
		if err := json.Unmarshal(line, &r); err != nil || !strings.HasPrefix(r.Path, "/api") {
			return nil, nil, wire.BadRequest(
				"removal %d of %d cannot be read: want a line of JSON with the path of an object below /api or /apis (%v)", i+1, n, err)
		}
		removals = append(removals, r)
	}
	return removals, body, nil
}

// refused returns the kind and name of the object in a failure; "" if the failure names none.
func refused(f *wire.Failure) string {
	if f.Details == nil {
		return ""
	}
	return strings.TrimSpace(f.Details.Kind + " " + f.Details.Name)
}

// replaceFiles replaces the files of a watched directory in the copy by those of the body.
func (p *foreseer) replaceFiles(r *rehearsal, dir string, body []byte, plan *wire.KernelPlan) error {
	if !slices.Contains(p.a.cfg.ManifestDirs(), dir) {
		return wire.BadRequest("%s is not a directory that is watched here; these are: %s",
			dir, strings.Join(p.a.cfg.ManifestDirs(), ", "))
	}
	source, err := p.a.member.sourceIn(dir, r.fork)
	if err != nil {
		return err
	}
	files := map[string]*manifest.File{}
	for f := range r.fork.Files().All() {
		if within := source != "" && store.SourceOf(f.Path) == source || source == "" && reconcile.IsBelow(f.Path, dir); !within {
			files[f.Path] = f
		}
	}
	others := len(files)
	for d := json.NewDecoder(bufio.NewReader(bytes.NewReader(body))); ; {
		var f wire.PlanFile
		err := d.Decode(&f)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || !filepath.IsLocal(f.Path) {
			return wire.BadRequest("file %q cannot be read: want lines of JSON with a path below the directory, and data in base64 (%v)", f.Path, err)
		}
		path := filepath.Join(dir, f.Path)
		if source != "" {
			path = store.SourcePath(source, filepath.Clean(f.Path))
		}
		files[path] = manifest.Decode(path, f.Data, manifest.DefaultLimits())
	}
	guard := p.a.removals.Foresee(dir, len(files)-others, time.Now())
	if source != "" {
		local := guard
		guard = func(removals store.Removals) func(string) store.Decision {
			return holdRemovals(p.a.cfg, local, removals)
		}
	}
	if err := r.fork.SyncFork(manifest.FilesOf(files), guard); err != nil {
		return err
	}
	for _, q := range r.fork.Problems() {
		if q.Warning || slices.Contains(r.problems, q) {
			continue
		}
		name := ""
		if q.Object != (object.Ref{}) {
			name = q.Object.String()
		}
		plan.Objects = append(plan.Objects, wire.PlannedObject{Object: name, Did: wire.Refused, Message: q.String()})
	}
	for ref := range r.fork.Held() {
		if _, was := r.held[ref]; !was {
			plan.Objects = append(plan.Objects, wire.PlannedObject{Object: ref.String(), Did: wire.Held,
				Message: "no file has it any more, and so much would go at once that it is held until `svcctl confirm --removals`"})
		}
	}
	slices.SortStableFunc(plan.Objects, func(a, b wire.PlannedObject) int { return strings.Compare(a.Object, b.Object) })
	return nil
}

// sourceIn returns the name that the fleet uses for the manifests in a directory of this box (the source), or "" without a fleet. It returns an error
// if this box does not read that source.
func (m *member) sourceIn(dir string, objects *store.Store) (source string, err error) {
	if m == nil {
		return "", nil
	}
	for _, d := range sourceDirs(m.cfg) {
		if d.Path == dir {
			source = d.Name
		}
	}
	reader, here := objects.ForkReads(source)
	switch {
	case here:
		return source, nil
	case reader == "":
		reader = "no box"
	default:
		reader = "box " + reader
	}
	return "", wire.Conflict("%s reads source %s, which is in %s here: plan on the box that reads it", reader, source, dir)
}

// changed returns the objects that were created, changed or removed in the copy, by kind and name. Generated objects are left out.
func (r *rehearsal) changed() []wire.PlannedObject {
	list := []wire.PlannedObject{}
	for ref, versions := range r.fork.Tracked() {
		was, is, did := cmp.Or(versions[0], &store.Owned{}), cmp.Or(versions[1], &store.Owned{}), wire.Configured
		switch {
		case was.Object == is.Object || cmp.Or(versions[1], was).Owner.Controller != "":
			continue
		case versions[0] == nil:
			did = wire.Created
		case versions[1] == nil:
			did = wire.Removed
		}
		list = append(list, wire.PlannedObject{Object: ref.String(), Did: did, Values: given(was.Whole().Object, is.Whole().Object)})
	}
	slices.SortFunc(list, func(a, b wire.PlannedObject) int { return strings.Compare(a.Object, b.Object) })
	return list
}

// given returns, as text, the addresses and ports that a Service has after a change but did not have before it.
func given(before, after object.Object) (values []string) {
	svc, is := after.(*object.Service)
	if !is {
		return nil
	}
	old, _ := before.(*object.Service)
	had := valuesOf(old)
	return slices.DeleteFunc(valuesOf(svc), func(v string) bool { return slices.Contains(had, v) })
}

// valuesOf returns the addresses and node ports of a Service, each as a text such as "cluster IP 10.0.0.1". It returns nil for nil.
func valuesOf(svc *object.Service) (values []string) {
	if svc == nil {
		return nil
	}
	if !svc.Headless() {
		for _, ip := range svc.Spec.ClusterIPs {
			values = append(values, "cluster IP "+ip)
		}
	}
	for _, p := range svc.Spec.Ports {
		if p.NodePort != 0 {
			values = append(values, fmt.Sprintf("node port %d/%s", p.NodePort, p.Protocol))
		}
	}
	if n := svc.Spec.HealthCheckNodePort; n != 0 {
		values = append(values, fmt.Sprintf("health-check node port %d", n))
	}
	for _, ip := range svc.IngressIPs() {
		values = append(values, "load balancer IP "+ip)
	}
	return values
}

// foresee asks the reconcile loop to plan the objects of the copy. moved is set when the change alters the pools of load balancer IPs.
func (p *foreseer) foresee(ctx context.Context, r *rehearsal, moved bool) (f reconcile.Foreseen, err error) {
	wanted := reconcile.Foresee{
		Objects: r.fork.InForce(), Changes: r.fork.Changes(r.began), Revision: r.revision,
	}
	if moved || wanted.Changes.All {
		wanted.All = r.fork.ServiceKeys()
	}
	if moved {
		wanted.Host = func(facts *node.Facts) reconcile.Host { return p.a.hostFor(&r.cfg, facts) }
	}
	done := make(chan reconcile.ForeseeAnswer, 1)
	answer, err := ask(ctx, p.a.requests.loop, wanted.Request(done), done)
	if err != nil {
		return f, err
	}
	return answer.Foreseen, answer.Err
}

// describe adds the planned Services, and the changes of the ruleset, to plan.
func describe(f *reconcile.Foreseen, plan *wire.KernelPlan) {
	plan.Tables = forecast.Tables(&f.Transition, f.Printer)
	for _, key := range slices.Sorted(maps.Keys(f.Services)) {
		if words := forecast.Service(f.Before[key], f.Services[key].Ports); len(words) > 0 {
			plan.Services = append(plan.Services, wire.PlannedService{Service: key, Changes: words})
		}
		plan.Undecided = append(plan.Undecided, undecided(f.Services[key])...)
	}
}

// undecided returns, as text, the conditions other than objects that the plan of a Service depends on, such as health checks.
func undecided(svc *reconcile.Service) (all []string) {
	add := func(format string, args ...any) { all = append(all, svc.Key+": "+fmt.Sprintf(format, args...)) }
	if n := len(svc.Checked); n > 0 {
		add("%s %s checked: the checks decide at that moment which of them serve, and new ones begin as the plan has them", wire.Count(n, "endpoint"), resolve.Choose(n == 1, "is", "are"))
	}
	if svc.Relay != nil {
		add("its connections are relayed: the plan is as if every listener could be opened")
	}
	if svc.SlowStart > 0 {
		add("new endpoints get their weight in the course of %v: slots of the maps go on changing", svc.SlowStart)
	}
	if slices.ContainsFunc(svc.Ports, func(p nft.ServicePort) bool { return p.Balance == nft.LeastConnection && !p.Relayed() }) {
		add("it is balanced by open connections: slots of the maps are as of now, and move with them")
	}
	return all
}

// Plan writes, in nft syntax, the ruleset that a new appliance would program for the manifests in these files and directories, or in stdin for "-".
// It needs no privileges, no kernel and no running appliance. The addresses of the box are therefore not available: node ports answer on the single
// addresses that cfg.NodePortAddresses names. It returns the sorted names of the files that were read, in the form that problems have.
func Plan(cfg config.Config, paths []string, stdin io.Reader, w io.Writer) (names []string, problems []manifest.Problem, err error) {
	files, err := readManifests(paths, stdin)
	if err != nil {
		return nil, nil, err
	}
	names = slices.Sorted(maps.Keys(files))
	objects, made, err := storeOf(cfg, files)
	if err != nil {
		return names, nil, err
	}
	cfg = made.cfg
	sets := parts.NewSourceSets(sourceSetFiles(cfg.Services.SourceSets))
	host := reconcile.Host{Box: cfg.OfflineBox(), Resolve: cfg.ResolveFacts(nil, nil)}
	ruleset, found := reconcile.Plan(host, objects.InForce(), objects.Services(), false, sets, parts.NewForeseen(objects.InForce().Secret))
	if err := ruleset.WriteText(w); err != nil {
		return names, nil, fmt.Errorf("write the plan: %w", err)
	}
	reporter := reconcile.Reporter{Where: objects.Location}
	problems = append(objects.Problems(), notes(files)...)
	for _, q := range slices.Concat(made.plan.Problems, made.slices.Problems(), found) {
		// An error while serving; here nothing is refused, and the endpoints may come from elsewhere.
		q.Warning = q.Warning || q.Reason == resolve.ReasonNoEndpoints
		problems = append(problems, atField(files, reporter.Located(q)))
	}
	for _, q := range sets.Problems() {
		problems = append(problems, manifest.Problem{File: "--source-set", Reason: q.Reason, Message: q.Message})
	}
	return names, problems, nil
}

// storeOf returns a store in memory with the objects of files and those that the controllers make of them.
func storeOf(cfg config.Config, files map[string]*manifest.File) (*store.Store, *controllers, error) {
	objects, err := store.Open(engine.NewMemory(), cfg.Store())
	if err != nil {
		return nil, nil, err
	}
	if _, err := objects.SyncFiles(manifest.FilesOf(files)); err != nil {
		return nil, nil, err
	}
	made, err := controllersOf(cfg, objects, control.NewEndpoints(cfg.EndpointsFacts(), objects))
	return objects, made, err
}

// notes returns the notes of package annotation about the objects of files as problems. Clients of the API get them with responses.
func notes(files map[string]*manifest.File) (list []manifest.Problem) {
	for path, file := range files {
		for i := range file.Documents {
			d := &file.Documents[i]
			for _, note := range annotation.Notes(d.Object) {
				line, column := d.Position(note.Field)
				list = append(list, manifest.Problem{File: path, Line: line, Column: column, Object: object.RefOf(d.Object), Field: note.Field,
					Reason: store.ReasonNoEffect, Message: note.Text, Warning: true})
			}
		}
	}
	return list
}

// atField returns q with the line and column of its field in place of those of its object. It returns q unchanged if q has no field, or its object is
// not in files.
func atField(files map[string]*manifest.File, q manifest.Problem) manifest.Problem {
	file := files[q.File]
	if file == nil || q.Field == "" {
		return q
	}
	for i := range file.Documents {
		if d := &file.Documents[i]; d.Line == q.Line && d.Object.GetTypeMeta().Kind == q.Object.Kind && d.Object.GetMeta().Name == q.Object.Name {
			q.Line, q.Column = d.Position(q.Field)
			break
		}
	}
	return q
}

// readManifests decodes all manifests at the paths, as serve does.
func readManifests(paths []string, stdin io.Reader) (map[string]*manifest.File, error) {
	files := map[string]*manifest.File{}
	once := watch.Once{Stdin: stdin}
	err := once.Each(paths, func(name string, data []byte, refused *manifest.Problem) error {
		if refused != nil {
			files[name] = &manifest.File{Path: name, Err: refused}
		} else {
			files[name] = manifest.Decode(name, data, manifest.DefaultLimits())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	return files, nil
}

// Pin allocates addresses and ports for the Services of files as a new appliance would. It needs no privileges and no running appliance. It
// returns the Services by "namespace/name", and the problems of the files.
func Pin(cfg config.Config, files map[string]*manifest.File) (map[string]*object.Service, []manifest.Problem, error) {
	cfg.Addresses.Allocate = config.AllocateAuto
	objects, _, err := storeOf(cfg, files)
	if err != nil {
		return nil, nil, err
	}
	services := map[string]*object.Service{}
	for _, key := range objects.Services() {
		services[key], _, _ = objects.Service(key)
	}
	return services, objects.Problems(), nil
}
