package change

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

func TestRolling(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "none",
		"rollout=gw1,25%":                     "gw1,25% 2m0s 1m0s",
		"rollout=gw1 bake=0s within=5s":       "gw1 0s 5s",
		"bake=1m":                             "give --rollout, too",
		"within=1m":                           "give --rollout, too",
		"rollout=gw1 confirm=5m":              "exclude each other",
		"rollout=50%,25%":                     "--rollout: the share 25%",
		"rollout=gw1 bake=-1s":                "--bake",
		"rollout=gw1 bake=long":               "--bake",
		"rollout=gw1 within=1ms":              "--within",
		"rollout=gw1 bake=1h within=tomorrow": "--within",
		"on-failure=undo":                     "give --rollout, too",
		"rollout=gw1 on-failure=revert":       `--on-failure "revert": want one of stop, undo`,
		"rollout=gw1 on-failure=undo":         "gw1 2m0s 1m0s undo",
	} {
		for _, v := range []*cli.Verb{ApplyVerb(), DeleteVerb()} {
			for given := range strings.FieldsSeq(text) {
				name, value, _ := strings.Cut(given, "=")
				v.Option(name).Texts = []string{value}
			}
			err := v.Check()
			var r *rolling
			if err == nil {
				r, err = newRolling(&cli.Env{}, v, nil)
			}
			got := "none"
			switch {
			case err != nil:
				got = err.Error()
			case r != nil:
				got = r.steps + " " + r.bake.String() + " " + r.within.String()
				if r.onFailure != wire.OnFailureStop {
					got += " " + r.onFailure
				}
			}
			if err == nil && got != want || err != nil && !strings.Contains(got, want) {
				t.Errorf("%s %q: %q, want %q", v.Name, text, got, want)
			}
		}
	}
}
