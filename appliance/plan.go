package appliance

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/parts"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/watch"
)

// Planned has the files and problems of a plan.
type Planned struct {
	// Files are the names of the files that were read, sorted, as problems have them.
	Files    []string
	Problems []manifest.Problem
}

// Plan writes the ruleset that a fresh appliance would program for the manifests of
// these files and directories, or of stdin for "-", in nft syntax, and returns their problems and names. It
// needs no privileges, no kernel and no running appliance, so the addresses of the box
// are not known: node ports answer on the single addresses that cfg.NodePortAddresses
// names.
func Plan(cfg config.Config, paths []string, stdin io.Reader, w io.Writer) (Planned, error) {
	files, err := readManifests(paths, stdin)
	if err != nil {
		return Planned{}, err
	}
	planned := Planned{Files: slices.Sorted(maps.Keys(files))}
	objects, err := store.Open(engine.NewMemory(), cfg.Store())
	if err != nil {
		return planned, err
	}
	if _, err := objects.SyncFiles(manifest.FilesOf(files)); err != nil {
		return planned, err
	}
	made, err := controllersOf(cfg, objects)
	if err != nil {
		return planned, err
	}
	cfg = made.cfg
	var services []string
	for key := range objects.Services() {
		services = append(services, key)
	}
	sets := parts.NewSourceSets(sourceSetFiles(cfg.Services.SourceSets))
	host := reconcile.Host{Box: cfg.OfflineBox(), Resolve: cfg.ResolveFacts(nil, nil)}
	ruleset, found := reconcile.Plan(host, objects, services, false, sets, parts.NewForeseen(objects.Secret))
	if err := ruleset.WriteText(w); err != nil {
		return planned, fmt.Errorf("write the plan: %w", err)
	}
	reporter := reconcile.Reporter{Where: objects.Location}
	planned.Problems = append(objects.Problems(), notes(files)...)
	for _, q := range slices.Concat(made.plan.Problems, made.slices.Problems(), found) {
		// An error while serving; here nothing is refused, and the endpoints may come from elsewhere.
		q.Warning = q.Warning || q.Reason == resolve.ReasonNoEndpoints
		planned.Problems = append(planned.Problems, atField(files, reporter.InFile(q)))
	}
	for _, q := range sets.Problems() {
		planned.Problems = append(planned.Problems, manifest.Problem{File: "--source-set", Reason: q.Reason, Message: q.Message})
	}
	return planned, nil
}

// notes are those of annotation.Notes about the objects of files. Clients of the API get them with its answers.
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

// atField moves a problem from the line of its object to that of its field.
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

// readManifests decodes every manifest at the paths, as serve would read them.
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

// Manifests reads manifests once, as serve would read them.
type Manifests = watch.Once

// ReadFile reads a file that an operator named, of at most so many bytes; it refuses a file that is
// not regular, and never blocks on it.
func ReadFile(path string, most int) ([]byte, error) {
	data, err := watch.ReadFile(path, most)
	if refused, is := errors.AsType[*watch.RefusedError](err); is {
		return nil, fmt.Errorf("%s: %w", path, refused)
	}
	return data, err
}

// Pin gives the Services of files their addresses and ports as a fresh appliance would. It needs no privileges
// and no running appliance. It returns the Services by "namespace/name", and the problems of the files.
func Pin(cfg config.Config, files map[string]*manifest.File) (map[string]*object.Service, []manifest.Problem, error) {
	cfg.Addresses.Allocate = config.AllocateAuto
	objects, err := store.Open(engine.NewMemory(), cfg.Store())
	if err != nil {
		return nil, nil, err
	}
	if _, err := objects.SyncFiles(manifest.FilesOf(files)); err != nil {
		return nil, nil, err
	}
	if _, err := controllersOf(cfg, objects); err != nil {
		return nil, nil, err
	}
	return maps.Collect(objects.Services()), objects.Problems(), nil
}
