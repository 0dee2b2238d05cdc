package admin

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
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/pin"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

func pinVerb() *cli.Verb {
	return &cli.Verb{
		Name:  "admin pin",
		About: settings.SettingsAbout,
		Options: slices.Concat([]*cli.Option{
			{Name: "filename", Letter: "f", Arg: cli.ArgPath, Repeats: true, Group: cli.GroupWhich, Usage: "what to pin: a file, or the files of a directory and of those in it; repeatable"},
			{Name: "live", Group: cli.GroupHow, Usage: "write the values that the appliance of this box has given"},
			{Name: "dry-run", Group: cli.GroupHow, Usage: "list what would be written, and write nothing"},
		}, settings.ConnectOptions(), settings.SettingOptions(true)[1:]), // --config is of both
		Run: runPin,
	}
}

// pinFile is a file that is to be pinned.
type pinFile struct {
	path string
	text []byte
}

func runPin(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	paths := v.Option("filename").Texts
	if len(args) > 0 || len(paths) == 0 || slices.Contains(paths, "-") {
		return cli.Usagef("pin what? Give files or directories with -f: they are written")
	}
	cfg, err := settings.Load(env, v)
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
			fmt.Fprintln(env.Err, problem)
			return nil
		}
		texts = append(texts, pinFile{path, data})
		files[path] = manifest.Decode(path, data, manifest.DefaultLimits())
		return nil
	})
	if err != nil {
		return resource.Unreadable(err)
	}
	var services map[string]*object.Service
	if v.Option("live").On() {
		services, err = liveServices(ctx, env, v)
	} else {
		var problems []manifest.Problem
		services, problems, err = appliance.Pin(cfg, files)
		for _, problem := range problems {
			if !problem.Warning {
				refused++
				fmt.Fprintln(env.Err, problem)
			}
		}
	}
	if err != nil {
		return err
	}
	for _, file := range texts {
		wrong, err := pinOne(env, file, services, v.Option("dry-run").On())
		if err != nil {
			return err
		}
		refused += wrong
	}
	if refused > 0 {
		return fmt.Errorf("%s: these Services do not name all their values", output.Count(refused, "problem"))
	}
	return nil
}

// pinOne pins the Services of one file, and returns how many could not be.
func pinOne(env *cli.Env, file pinFile, services map[string]*object.Service, dryRun bool) (wrong int, err error) {
	of := func(key string) *object.Service {
		if services[key] == nil {
			wrong++
			fmt.Fprintf(env.Err, "%s: Service %s has no values on that box: with --live, apply it first\n", file.path, key)
		}
		return services[key]
	}
	pins := pin.Write(file.path, file.text, of)
	for _, err := range pins.Problems {
		wrong++
		fmt.Fprintln(env.Err, err)
	}
	if len(pins.Services) == 0 {
		return wrong, nil
	}
	text, err := pins.Text()
	if err != nil {
		return wrong, fmt.Errorf("%s: nothing is written: %w", file.path, err)
	}
	for _, d := range pins.Services {
		if err := env.Print(fmt.Sprintf("%s:%d: %s: %s\n", file.path, d.Line, d.Key, strings.Join(d.Values, ", "))); err != nil {
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
func liveServices(ctx context.Context, env *cli.Env, v *cli.Verb) (map[string]*object.Service, error) {
	services := map[string]*object.Service{}
	_, err := env.Client(v).Each(ctx, "/api/v1/services", nil, func(raw json.RawMessage) error {
		svc := &object.Service{}
		if err := json.Unmarshal(raw, svc); err != nil {
			return err
		}
		services[svc.Metadata.Namespace+"/"+svc.Metadata.Name] = svc
		return nil
	})
	return services, err
}
