package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
)

// A descriptor names a blob (OCI Image Specification 1.0, descriptor.md).
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    map[string]string `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: image PROGRAM ARCH VERSION SECONDS >ARCHIVE")
		os.Exit(2)
	}
	if err := write(os.Stdout, os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// write writes the archive: one layer, its configuration, its manifest and the index.
func write(out io.Writer, program, arch, version, seconds string) error {
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return err
	}
	at := time.Unix(n, 0).UTC()
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	layer, err := archive(at, []entry{
		{"etc/svcctl/manifests/", 0o755, nil}, {"run/svcctl/", 0o750, nil}, {"tmp/", 0o1777, nil}, {"usr/bin/svcctl", 0o755, content}, {"var/lib/svcctl/", 0o700, nil},
	})
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	zip, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := zip.Write(layer); err != nil {
		return err
	}
	if err := zip.Close(); err != nil {
		return err
	}
	files := []entry{{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)}}
	blob := func(mediaType string, content []byte) descriptor {
		sum := fmt.Sprintf("%x", sha256.Sum256(content))
		files = append(files, entry{"blobs/sha256/" + sum, 0o644, content})
		return descriptor{MediaType: mediaType, Digest: "sha256:" + sum, Size: len(content)}
	}
	encode := func(value any) []byte {
		text, _ := json.Marshal(value) // of maps, strings and numbers
		return text
	}
	const kind = "application/vnd.oci.image."
	layerAt := blob(kind+"layer.v1.tar+gzip", packed.Bytes())
	configAt := blob(kind+"config.v1+json", encode(map[string]any{
		"created": at.Format(time.RFC3339), "architecture": arch, "os": "linux",
		"config": map[string]any{
			"Entrypoint": []string{"/usr/bin/svcctl"},
			"Cmd":        []string{"serve", "--manifests", "/etc/svcctl/manifests"},
			"Volumes":    map[string]any{"/var/lib/svcctl": map[string]any{}},
			"StopSignal": "SIGTERM",
			"Labels":     map[string]string{"org.opencontainers.image.title": "svcctl", "org.opencontainers.image.version": version, "org.opencontainers.image.licenses": "Apache-2.0"},
		},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
		"history": []any{map[string]string{"created": at.Format(time.RFC3339), "created_by": "svcctl"}},
	}))
	manifestAt := blob(kind+"manifest.v1+json", encode(map[string]any{
		"schemaVersion": 2, "mediaType": kind + "manifest.v1+json", "config": configAt, "layers": []descriptor{layerAt},
	}))
	manifestAt.Platform = map[string]string{"architecture": arch, "os": "linux"}
	manifestAt.Annotations = map[string]string{"org.opencontainers.image.ref.name": version}
	files = append(files, entry{"index.json", 0o644, encode(map[string]any{"schemaVersion": 2, "manifests": []descriptor{manifestAt}})})
	whole, err := archive(at, files)
	if err != nil {
		return err
	}
	_, err = out.Write(whole)
	return err
}

// An entry is a file of an archive, or a directory if its name ends with a slash.
type entry struct {
	name    string
	mode    int64
	content []byte
}

// archive is a tar file with the directories above each entry.
func archive(at time.Time, entries []entry) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	made := map[string]bool{}
	put := func(e entry) error {
		h := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.content)), ModTime: at, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
		if e.name[len(e.name)-1] == '/' {
			if made[e.name] {
				return nil
			}
			made[e.name] = true
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := w.Write(e.content)
		return err
	}
	for _, e := range entries {
		for i := range len(e.name) - 1 {
			if e.name[i] == '/' {
				if err := put(entry{e.name[:i+1], 0o755, nil}); err != nil {
					return nil, err
				}
			}
		}
		if err := put(e); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}
