/* The theme searches in a web worker, which browsers refuse to pages opened from disk. There, a hidden frame of the same origin stands in for it. */
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      script.src = new URL(address, location.href)
      script.onload = () => {
        this.ready = true
        for (const data of this.waiting.splice(0)) this.postMessage(data)
      }
      script.onerror = () => this.dispatchEvent(new Event("error"))
      inside.document.body.append(script)
    }

    postMessage(data) {
      if (this.ready) this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
      else this.waiting.push(data)
    }

    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
