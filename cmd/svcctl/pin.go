package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"svcctl.io/svcctl/appliance"
	"svcctl.io/svcctl/cmd/svcctl/pin"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

func (p *program) pinVerb() *verb {
	return &verb{
		name:    "admin pin",
		summary: "write addresses and ports into manifests",
		args:    "-f FILE|DIR [FLAGS]",
		about: `Writes into the Services of files the cluster IPs, node ports and load balancer IPs that
they do not name, and leaves all else of the text as it is. Boxes that share nothing but
these files then serve the same; serve --allocate never refuses Services that name less.

Values are those that a fresh appliance with these settings would give to all of the
files together; with --live those that Services have on the appliance of this box.
Commit the files: two branches that take one value meet in a merge, or in the problems of
` + "`svcctl plan`" + `.

` + settingsAbout,
		options: slices.Concat([]*option{
			{name: "filename", letter: "f", arg: argPath, repeats: true, group: groupWhich, usage: "what to pin: a file, or the files of a directory and of those in it; repeatable"},
			{name: "live", group: groupHow, usage: "write the values that the appliance of this box has given"},
			{name: "dry-run", group: groupHow, usage: "list what would be written, and write nothing"},
		}, connectOptions(), settingOptions(true)[1:]), // --config is of both
		examples: []example{
			{"Before a commit.", "svcctl admin pin -f manifests/ && git diff manifests/"},
			{"A box that has served for a while: what it has given stays.", "sudo svcctl admin pin -f /etc/svcctl/manifests --live"},
		},
		exits: `  0  every Service of the files names its values
  1  a Service could not be pinned, or a file not be read: stderr has the reason
  2  wrong usage or configuration
  3  with --live, the appliance cannot be reached`,
		run: p.runPin,
	}
}

// pinFile is a file that is to be pinned.
type pinFile struct {
	path string
	text []byte
}

func (p *program) runPin(ctx context.Context, v *verb, args []string) error {
	paths := v.option("filename").texts
	if len(args) > 0 || len(paths) == 0 || slices.Contains(paths, "-") {
		return usagef("pin what? Give files or directories with -f: they are written")
	}
	cfg, err := p.config(v)
	if err != nil {
		return err
	}
	refused := 0
	var texts []pinFile
	files := map[string]*manifest.File{}
	once := appliance.Manifests{}
	err = once.Each(paths, func(path string, data []byte, problem *manifest.Problem) error {
		if problem != nil {
			refused++
			fmt.Fprintln(p.stderr, problem)
			return nil
		}
		texts = append(texts, pinFile{path, data})
		files[path] = manifest.Decode(path, data, manifest.DefaultLimits())
		return nil
	})
	if err != nil {
		return unreadable(err)
	}
	var services map[string]*object.Service
	if v.option("live").on() {
		services, err = p.liveServices(ctx, v)
	} else {
		var problems []manifest.Problem
		services, problems, err = appliance.Pin(cfg, files)
		for _, problem := range problems {
			if !problem.Warning {
				refused++
				fmt.Fprintln(p.stderr, problem)
			}
		}
	}
	if err != nil {
		return err
	}
	for _, file := range texts {
		wrong, err := p.pinFile(file, services, v.option("dry-run").on())
		if err != nil {
			return err
		}
		refused += wrong
	}
	if refused > 0 {
		return fmt.Errorf("%s: these Services do not name all their values", count(refused, "problem"))
	}
	return nil
}

// pinFile pins the Services of one file, and returns how many could not be.
func (p *program) pinFile(file pinFile, services map[string]*object.Service, dryRun bool) (wrong int, err error) {
	of := func(key string) *object.Service {
		if services[key] == nil {
			wrong++
			fmt.Fprintf(p.stderr, "%s: Service %s is not known to have values: with --live it is to be applied first\n", file.path, key)
		}
		return services[key]
	}
	pins := pin.Write(file.path, file.text, of)
	for _, err := range pins.Problems {
		wrong++
		fmt.Fprintln(p.stderr, err)
	}
	if len(pins.Services) == 0 {
		return wrong, nil
	}
	text, err := pins.Text()
	if err != nil {
		return wrong, fmt.Errorf("%s: nothing is written: %w", file.path, err)
	}
	for _, d := range pins.Services {
		if err := p.print(fmt.Sprintf("%s:%d: %s: %s\n", file.path, d.Line, d.Key, strings.Join(d.Values, ", "))); err != nil {
			return wrong, err
		}
	}
	if dryRun {
		return wrong, nil
	}
	return wrong, replaceFile(file.path, text)
}

// replaceFile puts a text in the place of a file, whole, with the permissions that the file has.
func replaceFile(path string, text []byte) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), ".svcctl-pin-*")
	if err != nil {
		return err
	}
	_, err = temporary.Write(text)
	err = errors.Join(err, temporary.Chmod(info.Mode().Perm()), temporary.Sync(), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(temporary.Name()))
	}
	return nil
}

// liveServices returns the Services of the appliance, by "namespace/name".
func (p *program) liveServices(ctx context.Context, v *verb) (map[string]*object.Service, error) {
	c, err := p.client(v)
	if err != nil {
		return nil, err
	}
	services := map[string]*object.Service{}
	_, err = c.Each(ctx, "/api/v1/services", nil, func(raw json.RawMessage) error {
		svc := &object.Service{}
		if err := json.Unmarshal(raw, svc); err != nil {
			return err
		}
		services[svc.Metadata.Namespace+"/"+svc.Metadata.Name] = svc
		return nil
	})
	return services, err
}
